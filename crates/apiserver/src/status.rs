//! `metav1.Status`: the errors that clients see, with upstream's codes, reasons and messages.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::limits::{QUOTED_BYTES, shortened, shortened_to};

/// An error response. Use the constructors below: each is one row of the table in the API conventions, so that equal
/// errors have equal messages.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason (`NotFound`, `Conflict`, …).
    pub reason: Cow<'static, str>,
    /// Human-readable message.
    pub message: String,
    /// The object of the error.
    pub details: Option<Box<Details>>,
    /// `metadata.continue`, for an expired page that can be continued inconsistently.
    pub continue_token: Option<Box<str>>,
}

/// `metav1.StatusDetails`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Details {
    /// Name of the object.
    pub name: String,
    /// API group.
    pub group: String,
    /// Resource (or kind, for validation errors), as upstream does.
    pub kind: String,
    /// UID of the object, if known.
    pub uid: String,
    /// The causes.
    pub causes: Vec<Cause>,
    /// Seconds after which the client may retry.
    pub retry_after_seconds: u32,
}

/// `metav1.StatusCause`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cause {
    /// Machine-readable cause, `reason` in JSON.
    pub reason: Cow<'static, str>,
    /// Human-readable text.
    pub message: String,
    /// Path of the field.
    pub field: String,
}

/// A resource and its group, printed as `deployments.apps` or `pods`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupName<'a> {
    /// API group, empty for core.
    pub group: &'a str,
    /// Plural resource or kind.
    pub name: &'a str,
}

impl fmt::Display for GroupName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() { f.write_str(self.name) } else { write!(f, "{}.{}", self.name, self.group) }
    }
}

/// A validation error of one field (`field.Error` upstream).
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// The kind of error.
    pub kind: FieldErrorKind,
    /// Path, like `spec.ports[0].name`.
    pub field: String,
    /// The text after the path.
    pub detail: String,
}

/// How many field errors a response has; their text could be larger than the object.
pub const FIELD_ERRORS: usize = 100;
/// The size limit of each error.
const FIELD_ERROR_BYTES: usize = 8 << 10;
/// The size limit of all errors.
const FIELD_ERRORS_BYTES: usize = 64 << 10;

/// Kinds of [`FieldError`] and their cause reason in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldErrorKind {
    /// The value violates a rule.
    Invalid,
    /// The value is missing.
    Required,
    /// The value is not one of the allowed values.
    NotSupported,
    /// The value occurs twice.
    Duplicate,
    /// The value is not allowed here or now.
    Forbidden,
    /// Too many bytes.
    TooLong,
    /// Too many items.
    TooMany,
    /// Wrong JSON type.
    TypeInvalid,
    /// The referenced object does not exist.
    NotFound,
    /// An error of the server.
    Internal,
}

impl FieldErrorKind {
    /// `CauseType` in JSON.
    pub fn cause(self) -> &'static str {
        match self {
            Self::Invalid => "FieldValueInvalid",
            Self::Required => "FieldValueRequired",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotFound => "FieldValueNotFound",
            Self::Internal => "InternalError",
        }
    }
}

impl FieldError {
    /// `path: Invalid value: <value>: <why>`.
    pub fn invalid(field: impl Into<String>, value: &Value, why: impl fmt::Display) -> Self {
        let detail = format!("Invalid value: {value}: {why}");
        Self { kind: FieldErrorKind::Invalid, field: field.into(), detail }
    }

    /// `path: Required value: <why>`.
    pub fn required(field: impl Into<String>, why: &str) -> Self {
        let detail =
            if why.is_empty() { "Required value".to_owned() } else { format!("Required value: {why}") };
        Self { kind: FieldErrorKind::Required, field: field.into(), detail }
    }

    /// `path: Forbidden: <why>`.
    pub fn forbidden(field: impl Into<String>, why: impl fmt::Display) -> Self {
        Self { kind: FieldErrorKind::Forbidden, field: field.into(), detail: format!("Forbidden: {why}") }
    }

    /// `path: Duplicate value: <value>`.
    pub fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Self {
            kind: FieldErrorKind::Duplicate,
            field: field.into(),
            detail: format!("Duplicate value: {value}"),
        }
    }

    /// `path: Unsupported value: <value>: supported values: "a", "b"`.
    pub fn not_supported(field: impl Into<String>, value: &Value, supported: &[&str]) -> Self {
        let list: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
        let detail = format!("Unsupported value: {value}: supported values: {}", list.join(", "));
        Self { kind: FieldErrorKind::NotSupported, field: field.into(), detail }
    }

    /// `path: Too long: may not be more than <max> bytes`.
    pub fn too_long(field: impl Into<String>, max: usize) -> Self {
        let detail = format!("Too long: may not be more than {max} bytes");
        Self { kind: FieldErrorKind::TooLong, field: field.into(), detail }
    }

    /// `path: Too many: <actual>: must have at most <max> items`.
    pub fn too_many(field: impl Into<String>, actual: usize, max: usize) -> Self {
        let detail = format!("Too many: {actual}: must have at most {max} items");
        Self { kind: FieldErrorKind::TooMany, field: field.into(), detail }
    }

    /// `path: Invalid value: <value>: <why>`, with cause FieldValueTypeInvalid.
    pub fn type_invalid(field: impl Into<String>, value: &Value, why: impl fmt::Display) -> Self {
        Self { kind: FieldErrorKind::TypeInvalid, ..Self::invalid(field, value, why) }
    }

    /// `path: Not found: <value>`.
    pub fn not_found(field: impl Into<String>, value: &Value) -> Self {
        Self { kind: FieldErrorKind::NotFound, field: field.into(), detail: format!("Not found: {value}") }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.detail)
    }
}

impl Status {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason: reason.into(), message: message.into(), details: None, continue_token: None }
    }

    fn about(mut self, resource: GroupName<'_>, name: &str) -> Self {
        let details = self.details_mut();
        details.name = name.into();
        details.group = resource.group.into();
        details.kind = resource.name.into();
        self
    }

    /// The details, created when absent.
    pub fn details_mut(&mut self) -> &mut Details {
        self.details.get_or_insert_default()
    }

    /// Adds a cause.
    pub fn with_cause(
        mut self,
        reason: impl Into<Cow<'static, str>>,
        field: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        let cause = Cause { reason: reason.into(), message: message.into(), field: field.into() };
        self.details_mut().causes.push(cause);
        self
    }

    /// Asks the client to retry after some seconds (also sent as `Retry-After`).
    pub fn with_retry_after(mut self, seconds: u32) -> Self {
        self.details_mut().retry_after_seconds = seconds;
        self
    }

    /// 404 for an object.
    pub fn not_found(resource: GroupName<'_>, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{resource} {name:?} not found")).about(resource, name)
    }

    /// 404 for a path or a resource that is not served.
    pub fn not_found_path() -> Self {
        let mut status = Self::new(404, "NotFound", "the server could not find the requested resource");
        status.details_mut();
        status
    }

    /// 409 for the creation of an existing object.
    pub fn already_exists(resource: GroupName<'_>, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{resource} {name:?} already exists")).about(resource, name)
    }

    /// 409 for a create while an object of this name is being deleted.
    pub fn being_deleted(resource: GroupName<'_>, name: &str) -> Self {
        let message = format!("object is being deleted: {resource} {name:?} already exists");
        Self::new(409, "AlreadyExists", message).about(resource, name)
    }

    /// 409 after eight generated names that were already used.
    pub fn generate_name_conflict(resource: GroupName<'_>, name: &str) -> Self {
        let message = format!(
            "{resource} {name:?} already exists, the server was not able to generate a unique name for the object"
        );
        Self::new(409, "AlreadyExists", message).about(resource, name).with_retry_after(1)
    }

    /// 409 for a stale resourceVersion or a failed precondition.
    pub fn conflict(resource: GroupName<'_>, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {resource} {name:?}: {why}");
        Self::new(409, "Conflict", message).about(resource, name)
    }

    /// 409 for a stale resourceVersion.
    pub fn modified(resource: GroupName<'_>, name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 409 of server-side apply; `message` lists the conflicts.
    pub fn apply_conflict(message: String, causes: Vec<Cause>) -> Self {
        let mut status = Self::new(409, "Conflict", message);
        status.details_mut().causes = causes;
        status
    }

    /// 422 with one cause per field, up to [`FIELD_ERRORS`]. `kind` is the kind in its group.
    pub fn invalid(kind: GroupName<'_>, name: &str, errors: &[FieldError]) -> Self {
        let mut room = FIELD_ERRORS_BYTES;
        let fits = |error: &&FieldError| {
            let bytes = error.field.len().min(QUOTED_BYTES) + error.detail.len().min(FIELD_ERROR_BYTES);
            let fits = room > 0;
            room = room.saturating_sub(bytes);
            fits
        };
        let shown: Vec<&FieldError> = errors.iter().take(FIELD_ERRORS).take_while(fits).collect();
        let detail = |error: &FieldError| shortened_to(&error.detail, FIELD_ERROR_BYTES);
        let text = |error: &FieldError| format!("{}: {}", shortened(&error.field), detail(error));
        let mut texts: Vec<String> = shown.iter().map(|error| text(error)).collect();
        if shown.len() < errors.len() {
            texts.push(format!("and {} more", errors.len() - shown.len()));
        }
        let joined = if texts.len() == 1 { texts.remove(0) } else { format!("[{}]", texts.join(", ")) };
        let mut status =
            Self::new(422, "Invalid", format!("{kind} {name:?} is invalid: {joined}")).about(kind, name);
        let causes = shown.iter().map(|error| Cause {
            reason: error.kind.cause().into(),
            message: detail(error),
            field: shortened(&error.field),
        });
        status.details_mut().causes = causes.collect();
        status
    }

    /// 401.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 403 for an object or resource: `<resource> "<name>" is forbidden: <why>`.
    pub fn forbidden(resource: GroupName<'_>, name: &str, why: &str) -> Self {
        let message = if resource.name.is_empty() {
            format!("forbidden: {why}")
        } else if name.is_empty() {
            format!("{resource} is forbidden: {why}")
        } else {
            format!("{resource} {name:?} is forbidden: {why}")
        };
        Self::new(403, "Forbidden", message).about(resource, name)
    }

    /// 405.
    pub fn method_not_allowed() -> Self {
        let mut status = Self::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        );
        status.details_mut();
        status
    }

    /// 406.
    pub fn not_acceptable(accepted: &[&str]) -> Self {
        let message = format!("only the following media types are accepted: {}", accepted.join(", "));
        Self::new(406, "NotAcceptable", message)
    }

    /// 415.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// 410 for a resourceVersion or page that is older than the history.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 410 for something that is permanently gone.
    pub fn gone(message: impl Into<String>) -> Self {
        Self::new(410, "Gone", message)
    }

    /// 413.
    pub fn too_large(why: impl fmt::Display) -> Self {
        Self::new(413, "RequestEntityTooLarge", format!("Request entity too large: {why}"))
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 429.
    pub fn too_many_requests(message: impl Into<String>) -> Self {
        Self::new(429, "TooManyRequests", message).with_retry_after(1)
    }

    /// 500.
    pub fn internal(why: impl fmt::Display) -> Self {
        let mut status = Self::new(500, "InternalError", format!("Internal error occurred: {why}"));
        let message = why.to_string();
        status.details_mut().causes.push(Cause { message, ..Cause::default() });
        status
    }

    /// 500 for a temporary failure of the server.
    pub fn server_timeout(resource: GroupName<'_>, verb: &str, retry_after: u32) -> Self {
        let message = format!(
            "The {verb} operation against {resource} could not be completed at this time, please try again."
        );
        Self::new(500, "ServerTimeout", message).about(resource, "").with_retry_after(retry_after)
    }

    /// 503.
    pub fn service_unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message)
    }

    /// 504.
    pub fn timeout(message: impl Into<String>, retry_after: u32) -> Self {
        Self::new(504, "Timeout", message).with_retry_after(retry_after)
    }

    /// 504 for a resourceVersion that this server has not reached.
    pub fn resource_version_too_large(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        Self::timeout(message, 1).with_cause("ResourceVersionTooLarge", "", "Too large resource version")
    }

    /// 507 when the disk is full: nothing was written and nothing is lost.
    pub fn insufficient_storage(why: impl fmt::Display) -> Self {
        Self::new(
            507,
            "InsufficientStorage",
            format!("the change was not stored: {why}; free some disk space for the store"),
        )
    }

    /// 422 without causes, for a JSON patch that cannot be applied and similar errors.
    pub fn unprocessable(message: impl Into<String>) -> Self {
        Self::new(422, "Invalid", message)
    }

    /// Whether the code is 404.
    pub fn is_not_found(&self) -> bool {
        self.code == 404
    }

    /// Whether this is a 409 Conflict.
    pub fn is_conflict(&self) -> bool {
        self.reason == "Conflict"
    }

    /// Whether this is a 409 AlreadyExists.
    pub fn is_already_exists(&self) -> bool {
        self.reason == "AlreadyExists"
    }

    /// The JSON object.
    pub fn to_value(&self) -> Value {
        let mut metadata = Map::new();
        if let Some(token) = &self.continue_token {
            metadata.insert("continue".into(), Value::from(&**token));
        }
        let mut out = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let Some(details) = &self.details {
            out["details"] = details.to_value();
        }
        out
    }

    /// The JSON bytes.
    pub fn to_bytes(&self) -> Bytes {
        Bytes::from(self.to_value().to_string())
    }
}

impl Details {
    fn to_value(&self) -> Value {
        let mut out = Map::new();
        for (key, value) in
            [("name", &self.name), ("group", &self.group), ("kind", &self.kind), ("uid", &self.uid)]
        {
            if !value.is_empty() {
                out.insert(key.into(), Value::from(value.as_str()));
            }
        }
        if !self.causes.is_empty() {
            let causes = self.causes.iter().map(|c| {
                let mut cause = Map::new();
                for (key, value) in [("reason", &*c.reason), ("message", &*c.message), ("field", &*c.field)] {
                    if !value.is_empty() {
                        cause.insert(key.into(), Value::from(value));
                    }
                }
                Value::Object(cause)
            });
            out.insert("causes".into(), causes.collect());
        }
        if self.retry_after_seconds > 0 {
            out.insert("retryAfterSeconds".into(), self.retry_after_seconds.into());
        }
        Value::Object(out)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}
