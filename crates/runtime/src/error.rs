//! Errors of a pass, and how the controller handles them.

/// A failed pass.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call to the Kubernetes API failed.
    #[error("{operation} failed")]
    Api {
        /// What failed, for people: `create Machine default/demo-abc`.
        operation: String,
        #[source]
        source: kube::Error,
    },
    /// The cached object is older than the server's; the pass must be repeated with a newer one.
    #[error("the cache has not caught up with {0}")]
    Stale(String),
    /// An object has invalid content.
    #[error("{0}")]
    Invalid(String),
    /// Any other error, with its chain.
    #[error("{operation} failed")]
    Other {
        operation: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// Adds to an API error what failed.
    pub fn api(operation: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let operation = operation.into();
        move |source| Self::Api { operation, source }
    }

    /// Adds to any error what failed.
    pub fn other<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        operation: impl Into<String>,
    ) -> impl FnOnce(E) -> Self {
        let operation = operation.into();
        move |source| Self::Other { operation, source: source.into() }
    }

    /// Another client wrote first, or the cache was behind: the pass is repeated soon, and it is not a failure.
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Api { source, .. } => is_conflict(source),
            Self::Stale(_) => true,
            _ => false,
        }
    }

    /// The API rejects the content of the write, until it is changed.
    pub fn is_invalid(&self) -> bool {
        matches!(self, Self::Api { source: kube::Error::Api(status), .. } if status.code == 422)
    }

    /// Whether nothing was written for certain: the API rejected the request, or did not receive it. After a lost
    /// connection or a server error, the write may have happened or may still happen.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Api { source: kube::Error::Api(status), .. } => {
                (400..500).contains(&status.code) && status.code != 408
            }
            Self::Api { .. } => false,
            Self::Stale(_) | Self::Invalid(_) | Self::Other { .. } => true,
        }
    }

    /// Whether the same pass may succeed later without a change of an object.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Api { source: kube::Error::Api(status), .. } => {
                !matches!(status.code, 400 | 403 | 405 | 413 | 415 | 422)
            }
            Self::Invalid(_) => false,
            _ => true,
        }
    }

    /// The whole chain in one line, for logs and conditions.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = std::error::Error::source(self);
        while let Some(cause) = next {
            // kube prints a Status twice (Display and Debug); its message is enough.
            let line = match cause.downcast_ref::<kube::Error>() {
                Some(kube::Error::Api(status)) => status.message.clone(),
                _ => cause.to_string(),
            };
            if !text.ends_with(&line) {
                text.push_str(": ");
                text.push_str(&line);
            }
            if cause.is::<kube::Error>() {
                break;
            }
            next = cause.source();
        }
        text
    }
}

/// 404.
pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// 409 because of a stale resourceVersion, uid or a failed precondition.
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason != "AlreadyExists")
}

/// 409 because the name is taken.
pub fn is_already_exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
}

/// Converts a 404 to `None`.
pub fn found<T>(result: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
