/// An image's name in an archive, with everything filled in that Docker leaves unsaid.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// Registry host; `docker.io` by default.
    pub registry: String,
    /// Path of the repository.
    pub repository: String,
    /// Tag; `latest` by default.
    pub tag: String,
}

impl Name {
    /// Reads `[registry/]repository[:tag]`; `None` for what cannot be a name.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.split('@').next().unwrap_or_default();
        let (name, tag) = match text.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, tag),
            _ => (text, "latest"),
        };
        let (registry, repository) = match name.split_once('/') {
            Some((first, rest)) if first == "localhost" || first.contains(['.', ':']) => {
                (first, rest.to_owned())
            }
            Some(_) => ("docker.io", name.to_owned()),
            None => ("docker.io", format!("library/{name}")),
        };
        let registry = canonical(registry);
        let repository = match registry {
            "docker.io" if !repository.contains('/') => format!("library/{repository}"),
            _ => repository,
        };
        (is_host(registry) && is_repository(&repository) && is_tag(tag)).then(|| Self {
            registry: registry.to_owned(),
            repository,
            tag: tag.to_owned(),
        })
    }
}

/// Docker Hub under its usual name.
pub(crate) fn canonical(registry: &str) -> &str {
    match registry {
        "index.docker.io" | "registry-1.docker.io" => "docker.io",
        other => other,
    }
}

fn is_host(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || ".:-[]".contains(c))
}

pub(crate) fn is_repository(text: &str) -> bool {
    let part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c))
    };
    text.len() <= 255 && text.split('/').all(part)
}

pub(crate) fn is_tag(text: &str) -> bool {
    text.len() <= 128
        && text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// `sha256:` and 64 hex digits.
pub(crate) fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:")
        .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unsaid_is_filled_in() {
        let text =
            |text: &str| Name::parse(text).map(|it| format!("{} {} {}", it.registry, it.repository, it.tag));
        assert_eq!(text("busybox").as_deref(), Some("docker.io library/busybox latest"));
        assert_eq!(text("index.docker.io/a/b:1").as_deref(), Some("docker.io a/b 1"));
        assert_eq!(text("r.x:5000/a/b:v1@sha256:00").as_deref(), Some("r.x:5000 a/b v1"));
        for bad in ["", "a:", "A/b", "../x", "r.x/../y:1", "/x", "a b"] {
            assert_eq!(text(bad), None, "{bad}");
        }
    }
}
