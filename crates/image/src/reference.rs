use crate::Digest;

/// The registry host of references without a registry.
pub const DOCKER_HUB: &str = "index.docker.io";

/// An image reference with Docker's defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Registry host; [`DOCKER_HUB`] by default.
    pub registry: String,
    /// Path of the repository.
    pub repository: String,
    /// Tag; `latest` by default, also if there is a digest.
    pub tag: String,
    /// `sha256:…`, if given.
    pub digest: Option<String>,
}

impl Reference {
    /// Parses `[registry/]repository[:tag][@digest]`.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (text, None),
        };
        if digest.is_some_and(|digest| Digest::parse(digest).is_none()) {
            return None;
        }
        let (name, tag) = match name.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, tag),
            _ => (name, "latest"),
        };
        let (registry, repository) = match name.split_once('/') {
            Some((first, rest)) if first == "localhost" || first.contains(['.', ':']) => (first, rest),
            _ => (DOCKER_HUB, name),
        };
        let docker_hub = is_docker_hub(registry);
        let repository = match docker_hub && !repository.contains('/') {
            true => format!("library/{repository}"),
            false => repository.to_owned(),
        };
        let registry = if docker_hub { DOCKER_HUB } else { registry };
        (is_host(registry) && is_repository(&repository) && is_tag(tag)).then(|| Self {
            registry: registry.to_owned(),
            repository,
            tag: tag.to_owned(),
            digest: digest.map(str::to_owned),
        })
    }

    /// The registry as mirrors expect it in `ns`, and as people write it.
    pub fn namespace(&self) -> &str {
        if self.registry == DOCKER_HUB { "docker.io" } else { &self.registry }
    }

    /// The full reference, for messages.
    pub fn text(&self) -> String {
        let digest = self.digest.as_ref().map(|digest| format!("@{digest}")).unwrap_or_default();
        format!("{}/{}:{}{digest}", self.namespace(), self.repository, self.tag)
    }
}

/// Whether this is one of the host names of Docker Hub.
pub fn is_docker_hub(registry: &str) -> bool {
    matches!(registry, "docker.io" | DOCKER_HUB | "registry-1.docker.io")
}

/// Whether this is a valid repository path.
pub fn is_repository(text: &str) -> bool {
    let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    text.len() <= 255 && text.split('/').all(|part| only(part, valid) && !matches!(part, "." | ".."))
}

/// Whether this is a valid tag.
pub fn is_tag(text: &str) -> bool {
    text.len() <= 128
        && !text.starts_with(['.', '-'])
        && only(text, |c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

fn is_host(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[')
        && only(text, |c| c.is_ascii_alphanumeric() || ".:-[]".contains(c))
}

fn only(text: &str, valid: impl Fn(char) -> bool) -> bool {
    !text.is_empty() && text.chars().all(valid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_filled_in() {
        let text = |text: &str| {
            let it = Reference::parse(text).unwrap();
            format!("{} {} {}", it.registry, it.repository, it.tag)
        };
        assert_eq!(text("busybox"), "index.docker.io library/busybox latest");
        assert_eq!(text("docker.io/busybox:1"), "index.docker.io library/busybox 1");
        assert_eq!(text("index.docker.io/a/b:1"), "index.docker.io a/b 1");
        assert_eq!(text("rancher/x-k3s:v1.34.1-k3s1"), "index.docker.io rancher/x-k3s v1.34.1-k3s1");
        assert_eq!(text("localhost:5000/a/b/c"), "localhost:5000 a/b/c latest");
        assert_eq!(text("r.example.com/a:t"), "r.example.com a t");
        let digest = format!("r.x:5000/a/b:v1@sha256:{}", "0".repeat(64));
        let parsed = Reference::parse(&digest).unwrap();
        assert_eq!((parsed.digest.is_some(), parsed.tag.as_str()), (true, "v1"));
        for bad in ["", "a:", "a@sha256:12", "../x", "a b", "r.x/../y:1", "/x", "A/b", "a:.x"] {
            assert_eq!(Reference::parse(bad), None, "{bad}");
        }
    }
}
