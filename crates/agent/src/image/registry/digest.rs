use sha2::Sha256;

/// A SHA-256 digest, the only kind that registries are known to use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Digest(String);

impl Digest {
    /// Reads `sha256:<64 hex digits in lower case>`.
    pub fn parse(text: &str) -> Option<Self> {
        let hex = text.strip_prefix("sha256:")?;
        let fits = hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        fits.then(|| Self(hex.to_owned()))
    }

    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(hex::encode(<Sha256 as sha2::Digest>::digest(bytes)))
    }

    /// Of what the hasher was fed.
    pub(in crate::image) fn finish(hasher: Sha256) -> Self {
        Self(hex::encode(sha2::Digest::finalize(hasher)))
    }

    /// The digits alone: safe as a file's name.
    pub fn hex(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}
