//! Parses the `WWW-Authenticate` header, in which a registry states how to authenticate.

/// How to authenticate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// A user name and password with each request.
    Basic,
    /// A token from another server.
    Bearer {
        /// The URL of that server.
        realm: String,
        /// The service that the token is for.
        service: Option<String>,
        /// The permissions of the token.
        scope: Option<String>,
    },
}

impl Challenge {
    /// All supported challenges in a header, in their order.
    pub fn parse(header: &str) -> Vec<Self> {
        let mut found: Vec<(String, Vec<(String, String)>)> = Vec::new();
        let mut rest = header.trim_start();
        while !rest.is_empty() {
            let word_end = rest.find([' ', '=', ',', '\t']).unwrap_or(rest.len());
            let (word, after) = rest.split_at(word_end);
            let spaced = after.trim_start();
            if let Some(value) = spaced.strip_prefix('=') {
                let (value, after) = value_of(value.trim_start());
                if let Some((_, parameters)) = found.last_mut() {
                    parameters.push((word.to_ascii_lowercase(), value));
                }
                rest = after;
            } else {
                if !word.is_empty() {
                    found.push((word.to_ascii_lowercase(), Vec::new()));
                }
                rest = after;
            }
            rest = rest.trim_start_matches([' ', '\t', ',']);
        }
        found.into_iter().filter_map(|(scheme, parameters)| Self::of(&scheme, parameters)).collect()
    }

    fn of(scheme: &str, parameters: Vec<(String, String)>) -> Option<Self> {
        let get = |name: &str| {
            parameters.iter().find(|(have, value)| have == name && !value.is_empty()).map(|(_, v)| v.clone())
        };
        match scheme {
            "basic" => Some(Self::Basic),
            "bearer" => {
                Some(Self::Bearer { realm: get("realm")?, service: get("service"), scope: get("scope") })
            }
            _ => None,
        }
    }
}

/// A quoted or plain value, and the rest of the text.
fn value_of(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ', '\t']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            c => value.push(c),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_in_all_forms_are_parsed() {
        let bearer = |realm: &str, service: &str, scope: &str| Challenge::Bearer {
            realm: realm.into(),
            service: Some(service.into()).filter(|s: &String| !s.is_empty()),
            scope: Some(scope.into()).filter(|s: &String| !s.is_empty()),
        };
        for (header, expected) in [
            ("Basic realm=\"x\"", vec![Challenge::Basic]),
            (
                "Bearer realm=\"https://a/t\",service=\"s\",scope=\"repository:a/b:pull,push\"",
                vec![bearer("https://a/t", "s", "repository:a/b:pull,push")],
            ),
            ("bearer realm=https://a , service = s", vec![bearer("https://a", "s", "")]),
            (
                "Negotiate, Basic realm=\"a\\\"b\", Bearer realm=\"r\"",
                vec![Challenge::Basic, bearer("r", "", "")],
            ),
            ("Bearer service=\"s\"", vec![]),
            ("", vec![]),
            ("=,=\"", vec![]),
        ] {
            assert_eq!(Challenge::parse(header), expected, "{header}");
        }
    }
}
