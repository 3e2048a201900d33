//! Detects probe URLs that Go cannot parse: the original does not change the status of such a probe. All other probes
//! run, and fail if they do not have an http URL.

use std::net::Ipv6Addr;

/// Whether `url.Parse` rejects the text.
pub(super) fn is_malformed(text: &str) -> bool {
    if text.bytes().any(|byte| byte.is_ascii_control()) {
        return true;
    }
    let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
    if bad_escape(fragment) || text.starts_with(':') {
        return true;
    }
    let scheme = text.split_once(':').map(|(scheme, _)| scheme).filter(|scheme| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    });
    let rest = &text[scheme.map_or(0, |scheme| scheme.len() + 1)..];
    let rest = rest.split('?').next().unwrap_or_default();
    if !rest.starts_with('/') {
        let first = rest.split('/').next().unwrap_or_default();
        return scheme.is_none() && (first.contains(':') || bad_escape(rest));
    }
    match rest.strip_prefix("//").filter(|_| scheme.is_some() || !rest.starts_with("///")) {
        None => bad_escape(rest),
        Some(rest) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            bad_authority(authority) || bad_escape(path)
        }
    }
}

fn bad_authority(text: &str) -> bool {
    let (user, host) = text.rsplit_once('@').unwrap_or(("", text));
    let in_user = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte);
    if !user.bytes().all(in_user) || bad_escape(user) {
        return true;
    }
    let (name, port) = if let Some(rest) = host.strip_prefix('[') {
        let Some((address, port)) = rest.rsplit_once(']') else { return true };
        let (address, zone) = address.split_once("%25").unwrap_or((address, ""));
        if address.parse::<Ipv6Addr>().is_err() || bad_escape(zone) {
            return true;
        }
        ("", port)
    } else {
        host.split_at(host.find(':').unwrap_or(host.len()))
    };
    let in_name =
        |byte: u8| byte.is_ascii_alphanumeric() || !byte.is_ascii() || b"-_.~!$&'()*+,;=<>\"".contains(&byte);
    let in_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    !name.bytes().all(in_name) || !(port.is_empty() || port.strip_prefix(':').is_some_and(in_port))
}

/// Whether a percent sign is not followed by two hex digits.
fn bad_escape(text: &str) -> bool {
    let digits = |rest: &[u8]| rest.len() >= 2 && rest[..2].iter().all(u8::is_ascii_hexdigit);
    text.bytes().enumerate().any(|(at, byte)| byte == b'%' && !digits(&text.as_bytes()[at + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_malformed_exactly_if_go_rejects_them() {
        for read in [
            "",
            "ftp://h/x",
            "no url",
            "http://",
            "http:///x",
            "localhost:80/x",
            "http://h:99999/",
            "h.x:1/",
            "http://h/a?%zz",
            "http://a<b/",
            "http://\u{fc}/",
            "//h/x",
            "/x",
            "?x",
            "#f",
            "http:h/x",
            "*",
            "http://u:p@/x",
            "http://@h/",
            "http://h:/",
            "http://[::1%25eth0]/",
            "http://u:p:q@h/",
        ] {
            assert!(!is_malformed(read), "{read:?}");
        }
        for malformed in [
            "127.0.0.1:80/x",
            ":80/x",
            " http://h/",
            "http://a b/",
            "http://h/\n",
            "http://h/\u{7f}",
            "1ab://x",
            "http://h:abc/",
            "http://[::1/",
            "http://[::1]x/",
            "http://h/%zz",
            "http://h/#%zz",
            "http://[x]/",
            "http://u p@h/",
            "http://%41/",
            "http://a|b/",
            "http://[::1%eth0]/",
            "http://::1/",
            "http://a:b:80/",
            "http://u%zz:p@h/",
            "http://a\\b/",
        ] {
            assert!(is_malformed(malformed), "{malformed:?}");
        }
    }
}
