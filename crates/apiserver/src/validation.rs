//! Names, labels and annotations: the syntax rules of all objects.

/// An RFC 1123 label: `[a-z0-9]([-a-z0-9]*[a-z0-9])?`, at most 63 characters.
pub fn dns1123_label(text: &str) -> Result<(), &'static str> {
    if text.len() > 63 {
        return Err("must be no more than 63 characters");
    }
    if is_label(text) {
        return Ok(());
    }
    Err(
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
    )
}

/// An RFC 1123 subdomain: labels joined by dots, at most 253 characters.
pub fn dns1123_subdomain(text: &str) -> Result<(), &'static str> {
    if text.len() > 253 {
        return Err("must be no more than 253 characters");
    }
    if !text.is_empty() && text.split('.').all(is_label) {
        return Ok(());
    }
    Err(
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
    )
}

/// An RFC 1035 label: starts with a letter.
pub fn dns1035_label(text: &str) -> Result<(), &'static str> {
    if text.len() > 63 {
        return Err("must be no more than 63 characters");
    }
    if is_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase()) {
        return Ok(());
    }
    Err(
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')",
    )
}

/// A name that may be a path segment: not `.`, `..`, and without `/` and `%`.
pub fn path_segment(text: &str) -> Result<(), &'static str> {
    match text {
        "." => Err("may not be '.'"),
        ".." => Err("may not be '..'"),
        _ if text.contains('/') => Err("may not contain '/'"),
        _ if text.contains('%') => Err("may not contain '%'"),
        _ => Ok(()),
    }
}

/// A qualified name: `[prefix/]name`, used for label, annotation and finalizer keys.
pub fn label_key(text: &str) -> Result<(), &'static str> {
    let name = match text.split_once('/') {
        Some((prefix, name)) => {
            if prefix.is_empty() {
                return Err("prefix part must be non-empty");
            }
            dns1123_subdomain(prefix).map_err(|_| "prefix part must be a lowercase RFC 1123 subdomain")?;
            name
        }
        None => text,
    };
    if name.is_empty() {
        return Err("name part must be non-empty");
    }
    if name.len() > 63 {
        return Err("name part must be no more than 63 characters");
    }
    if is_qualified(name) { Ok(()) } else { Err(QUALIFIED) }
}

/// A label value: empty or at most 63 characters of `[A-Za-z0-9_.-]`, alphanumeric at both ends.
pub fn label_value(text: &str) -> Result<(), &'static str> {
    if text.len() > 63 {
        return Err("must be no more than 63 characters");
    }
    if text.is_empty() || is_qualified(text) {
        return Ok(());
    }
    Err(
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
    )
}

/// A key of a Secret's or ConfigMap's data.
pub fn config_map_key(text: &str) -> Result<(), &'static str> {
    if text.len() > 253 {
        return Err("must be no more than 253 characters");
    }
    if text.is_empty() || !text.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'))
    {
        return Err(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
        );
    }
    match text {
        "." => Err("must not be '.'"),
        ".." => Err("must not be '..'"),
        _ if text.starts_with("..") => Err("must not start with '..'"),
        _ => Ok(()),
    }
}

const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |c: &u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    bytes.first().is_some_and(edge)
        && bytes.last().is_some_and(edge)
        && bytes.iter().all(|c| edge(c) || *c == b'-')
}

fn is_qualified(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = u8::is_ascii_alphanumeric;
    bytes.first().is_some_and(edge)
        && bytes.last().is_some_and(edge)
        && bytes.iter().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syntax_rules() {
        assert!(dns1123_subdomain("a.b-c.d1").is_ok());
        for bad in ["", "A", "-a", "a-", "a..b", "a_b"] {
            assert!(dns1123_subdomain(bad).is_err(), "{bad}");
        }
        assert!(dns1035_label("1a").is_err());
        assert!(label_key("example.com/My_Key").is_ok());
        for bad in ["/a", "A.com/", "a/b/c", "", "-a"] {
            assert!(label_key(bad).is_err(), "{bad}");
        }
        assert!(label_value("").is_ok());
        assert!(config_map_key("..a").is_err());
        assert!(config_map_key("tls.crt").is_ok());
        assert!(path_segment("system:node").is_ok());
    }
}
