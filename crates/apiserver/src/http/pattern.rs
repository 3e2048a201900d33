//! Path patterns, as used in code and in the documentation of permissions.

/// Whether a path matches a pattern. `{name}` matches one segment, `...` at the end one or more; a trailing
/// slash of the path is ignored.
pub fn matches(pattern: &str, path: &str) -> bool {
    let mut path = path.strip_suffix('/').unwrap_or(path).split('/');
    for expected in pattern.strip_suffix('/').unwrap_or(pattern).split('/') {
        let Some(segment) = path.next() else { return false };
        match expected {
            "..." => return !segment.is_empty() || path.next().is_some(),
            _ if expected.starts_with('{') && !segment.is_empty() => {}
            _ if expected == segment => {}
            _ => return false,
        }
    }
    path.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_pattern_matches_its_paths_and_no_others() {
        for (pattern, paths) in [
            ("/", &["/", ""][..]),
            ("/api", &["/api", "/api/"]),
            ("/apis/{group}", &["/apis/apps", "/apis/apps/"]),
            ("/assets/...", &["/assets/a", "/assets/a/b", "/assets/a/", "/assets//a"]),
        ] {
            assert!(paths.iter().all(|path| matches(pattern, path)), "{pattern}");
        }
        for (pattern, paths) in [
            ("/", &["/api", "//"][..]),
            ("/api", &["/apis", "/api/v1", "/", "api", "//api", "/API"]),
            ("/apis/{group}", &["/apis", "/apis/", "/apis/apps/v1", "/apis//"]),
            ("/assets/...", &["/assets", "/assets/", "/assetsx/a"]),
        ] {
            for path in paths {
                assert!(!matches(pattern, path), "{pattern} {path}");
            }
        }
    }
}
