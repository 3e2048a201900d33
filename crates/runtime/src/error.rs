//! What can go wrong in a reconcile, and what the harness does about it.

/// A failed pass.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call to the Kubernetes API failed.
    #[error("{operation} failed")]
    Api {
        /// What was tried, for people: `create Machine default/demo-abc`.
        operation: String,
        #[source]
        source: kube::Error,
    },
    /// Our own view of an object is older than the server's; observing again is all there is to do.
    #[error("the cache has not caught up with {0}")]
    Stale(String),
    /// An object holds something that cannot be worked with.
    #[error("{0}")]
    Invalid(String),
    /// Anything else, with its chain.
    #[error("{operation} failed")]
    Other {
        operation: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// Wraps an API error with what was tried.
    pub fn api(operation: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let operation = operation.into();
        move |source| Self::Api { operation, source }
    }

    /// Wraps any error with what was tried.
    pub fn other<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        operation: impl Into<String>,
    ) -> impl FnOnce(E) -> Self {
        let operation = operation.into();
        move |source| Self::Other { operation, source: source.into() }
    }

    /// Someone else wrote first, or our view was old: look again soon, it is no failure.
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Api { source, .. } => is_conflict(source),
            Self::Stale(_) => true,
            _ => false,
        }
    }

    /// The API refuses what was to be written, and will until it is changed.
    pub fn is_invalid(&self) -> bool {
        matches!(self, Self::Api { source: kube::Error::Api(status), .. } if status.code == 422)
    }

    /// Whether nothing was written for sure: the API said no, or was not asked. After a lost connection or an error of the
    /// server the write may have happened, or may yet.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Api { source: kube::Error::Api(status), .. } => {
                (400..500).contains(&status.code) && status.code != 408
            }
            Self::Api { .. } => false,
            Self::Stale(_) | Self::Invalid(_) | Self::Other { .. } => true,
        }
    }

    /// Whether the same pass may succeed later without anyone changing an object.
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
            // kube prints a Status twice (display and debug); its message alone reads better.
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

/// Absence is data: a 404 becomes `None`.
pub fn found<T>(result: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
