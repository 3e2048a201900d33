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
        if digest.is_some_and(|digest| {
            digest.strip_prefix("sha256:").is_none_or(|hex| hex.len() != 64 || hex::decode(hex).is_err())
        }) {
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
        let plain = |text: &str, more: &str| {
            !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
        };
        if !registry.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[')
            || !plain(registry, ".:-[]")
            || !plain(tag, "._-")
            || !repository.split('/').all(|part| plain(part, "._-") && part != "..")
        {
            return None;
        }
        Some(Self {
            registry: if docker { "index.docker.io".into() } else { registry.to_owned() },
            repository,
            tag: tag.to_owned(),
            digest: digest.map(str::to_owned),
        })
    }
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
