use super::registry::Digest;

/// The registry of names that name none.
pub(super) const DOCKER_HUB: &str = "index.docker.io";

/// An image reference, with everything filled in that Docker leaves unsaid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Registry host; `index.docker.io` by default.
    pub registry: String,
    /// Path of the repository.
    pub repository: String,
    /// Tag; `latest` by default, also beside a digest.
    pub tag: String,
    /// `sha256:…`, if given.
    pub digest: Option<String>,
}

impl Reference {
    /// Reads `[registry/]repository[:tag][@digest]`.
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
            Some((first, rest)) if first == "localhost" || first.contains(['.', ':']) => {
                (first, rest.to_owned())
            }
            Some(_) => ("docker.io", name.to_owned()),
            None => ("docker.io", format!("library/{name}")),
        };
        let docker = matches!(registry, "docker.io" | "index.docker.io" | "registry-1.docker.io");
        let repository =
            if docker && !repository.contains('/') { format!("library/{repository}") } else { repository };
        if !registry.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[')
            || !plain(registry, ".:-[]")
            || !plain(tag, "._-")
            || !Self::is_repository(&repository)
        {
            return None;
        }
        Some(Self {
            registry: if docker { DOCKER_HUB.into() } else { registry.to_owned() },
            repository,
            tag: tag.to_owned(),
            digest: digest.map(str::to_owned),
        })
    }

    /// Whether this can be the path of a repository.
    pub fn is_repository(text: &str) -> bool {
        text.split('/').all(|part| plain(part, "._-") && !matches!(part, "." | ".."))
    }

    /// The registry's name, as mirrors want to hear it.
    pub fn namespace(&self) -> &str {
        if self.registry == DOCKER_HUB { "docker.io" } else { &self.registry }
    }

    /// For people.
    pub fn text(&self) -> String {
        let digest = self.digest.as_ref().map(|digest| format!("@{digest}")).unwrap_or_default();
        format!("{}/{}:{}{digest}", self.namespace(), self.repository, self.tag)
    }
}

fn plain(text: &str, more: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unsaid_is_filled_in() {
        let text = |text: &str| {
            let it = Reference::parse(text).unwrap();
            format!("{} {} {}", it.registry, it.repository, it.tag)
        };
        assert_eq!(text("busybox"), "index.docker.io library/busybox latest");
        assert_eq!(text("docker.io/busybox:1"), "index.docker.io library/busybox 1");
        assert_eq!(text("rancher/x-k3s:v1.34.1-k3s1"), "index.docker.io rancher/x-k3s v1.34.1-k3s1");
        assert_eq!(text("localhost:5000/a/b/c"), "localhost:5000 a/b/c latest");
        assert_eq!(text("r.example.com/a:t"), "r.example.com a t");
        let digest = format!("a@sha256:{}", "0".repeat(64));
        assert!(Reference::parse(&digest).unwrap().digest.is_some());
        for bad in ["", "a:", "a@sha256:12", "../x", "a b", "r.x/../y:1", "/x"] {
            assert_eq!(Reference::parse(bad), None, "{bad}");
        }
    }
}
