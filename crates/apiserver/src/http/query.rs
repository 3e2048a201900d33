//! Parses query parameters.

use std::time::Duration;

use crate::objects::{DeleteOptions, FieldValidation, ListOptions, VersionMatch, WatchOptions};
use crate::resources::{Propagation, Resource};
use crate::selector::{FieldSelector, LabelSelector};
use crate::server::IncludeObject;
use crate::status::{FieldError, GroupName, Status};

const MAX_MANAGER: usize = 128;

/// Decoded query parameters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        Self(form_urlencoded::parse(text.as_bytes()).into_owned().collect())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.optional_flag(name) == Some(true)
    }

    fn optional_flag(&self, name: &str) -> Option<bool> {
        // As Go's conversion of query parameters: any value except "false" and "0" is true.
        self.get(name).map(|value| !matches!(value, "false" | "0"))
    }

    fn number(&self, name: &str) -> Result<Option<i64>, Status> {
        match self.get(name) {
            None | Some("") => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| {
                Status::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax ({name})"))
            }),
        }
    }

    pub(crate) fn dry_run(&self) -> Result<bool, Status> {
        let mut dry = false;
        for value in self.all("dryRun") {
            match value {
                "" => {}
                "All" => dry = true,
                other => {
                    let error = FieldError::not_supported("dryRun", &other.into(), &["All"]);
                    return Err(invalid("CreateOptions", &[error]));
                }
            }
        }
        Ok(dry)
    }

    pub(crate) fn field_validation(&self) -> Result<FieldValidation, Status> {
        match self.get("fieldValidation").unwrap_or_default() {
            "Strict" => Ok(FieldValidation::Strict),
            "" | "Warn" => Ok(FieldValidation::Warn),
            "Ignore" => Ok(FieldValidation::Ignore),
            other => {
                let supported = ["Ignore", "Strict", "Warn"];
                let error = FieldError::not_supported("fieldValidation", &other.into(), &supported);
                Err(invalid("CreateOptions", &[error]))
            }
        }
    }

    pub(crate) fn field_manager(&self) -> Result<Option<&str>, Status> {
        let Some(manager) = self.get("fieldManager").filter(|manager| !manager.is_empty()) else {
            return Ok(None);
        };
        if manager.chars().count() > MAX_MANAGER {
            return Err(invalid("PatchOptions", &[FieldError::too_long("fieldManager", MAX_MANAGER)]));
        }
        if manager.chars().any(char::is_control) {
            let error = FieldError::invalid(
                "fieldManager",
                &manager.into(),
                "should only contain printable characters",
            );
            return Err(invalid("PatchOptions", &[error]));
        }
        Ok(Some(manager))
    }

    pub(crate) fn include_object(&self) -> Result<IncludeObject, Status> {
        match self.get("includeObject").unwrap_or_default() {
            "" | "Metadata" => Ok(IncludeObject::Metadata),
            "None" => Ok(IncludeObject::None),
            "Object" => Ok(IncludeObject::Object),
            other => Err(Status::bad_request(format!("unrecognized includeObject value: {other:?}"))),
        }
    }

    pub(crate) fn resource_version(&self) -> Result<Option<u64>, Status> {
        match self.get("resourceVersion") {
            None | Some("") => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| {
                Status::bad_request(format!(
                    "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
                ))
            }),
        }
    }

    fn version_match(&self) -> Result<Option<VersionMatch>, FieldError> {
        match self.get("resourceVersionMatch").unwrap_or_default() {
            "" => Ok(None),
            "Exact" => Ok(Some(VersionMatch::Exact)),
            "NotOlderThan" => Ok(Some(VersionMatch::NotOlderThan)),
            other => Err(FieldError::not_supported(
                "resourceVersionMatch",
                &other.into(),
                &["Exact", "NotOlderThan", ""],
            )),
        }
    }

    fn selectors(&self, resource: &Resource) -> Result<(LabelSelector, FieldSelector), Status> {
        let text = self.get("labelSelector").unwrap_or_default();
        let labels = LabelSelector::parse(text)
            .map_err(|why| Status::bad_request(format!("unable to parse requirement: {why}")))?;
        let fields = FieldSelector::parse(self.get("fieldSelector").unwrap_or_default())
            .map_err(Status::bad_request)?;
        fields.check(resource).map_err(Status::bad_request)?;
        Ok((labels, fields))
    }

    /// The options of a list; rejects invalid combinations.
    pub(crate) fn list(&self, resource: &Resource) -> Result<ListOptions, Status> {
        let (labels, fields) = self.selectors(resource)?;
        let resource_version = self.resource_version()?;
        let version_match = self.version_match().map_err(|error| invalid("ListOptions", &[error]))?;
        let continue_token = self.get("continue").filter(|token| !token.is_empty()).map(str::to_owned);
        let mut errors = Vec::new();
        if version_match.is_some() {
            let forbidden = |why: &str| FieldError::forbidden("resourceVersionMatch", why);
            if resource_version.is_none() {
                errors
                    .push(forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided"));
            }
            if continue_token.is_some() {
                errors.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
            }
            if version_match == Some(VersionMatch::Exact) && resource_version == Some(0) {
                errors
                    .push(forbidden("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""));
            }
        }
        if self.get("sendInitialEvents").is_some() {
            errors
                .push(FieldError::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
        }
        if !errors.is_empty() {
            return Err(invalid("ListOptions", &errors));
        }
        if continue_token.is_some() && resource_version.is_some_and(|revision| revision > 0) {
            return Err(Status::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let limit = usize::try_from(self.number("limit")?.unwrap_or(0)).unwrap_or(0);
        Ok(ListOptions { labels, fields, limit, continue_token, resource_version, version_match })
    }

    /// The options of a watch. `deadline` is the default timeout.
    pub(crate) fn watch(&self, resource: &Resource, deadline: Duration) -> Result<WatchOptions, Status> {
        let (labels, fields) = self.selectors(resource)?;
        let resource_version = self.resource_version()?;
        let version_match = self.version_match().map_err(|error| invalid("ListOptions", &[error]))?;
        let send_initial_events = self.optional_flag("sendInitialEvents");
        let mut errors = Vec::new();
        match (send_initial_events, version_match) {
            (None, Some(_)) => errors.push(FieldError::forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            )),
            (Some(_), None) => errors.push(FieldError::forbidden(
                "resourceVersionMatch",
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            )),
            (Some(_), Some(VersionMatch::Exact)) => errors.push(FieldError::not_supported(
                "resourceVersionMatch",
                &"Exact".into(),
                &["NotOlderThan"],
            )),
            _ => {}
        }
        if !errors.is_empty() {
            return Err(invalid("ListOptions", &errors));
        }
        let timeout = match self.number("timeoutSeconds")? {
            Some(seconds) if seconds > 0 => Duration::from_secs(seconds.unsigned_abs()),
            _ => deadline,
        };
        let list = ListOptions { labels, fields, resource_version, ..ListOptions::default() };
        Ok(WatchOptions { list, send_initial_events, bookmarks: self.flag("allowWatchBookmarks"), timeout })
    }

    /// `DeleteOptions` from parameters.
    pub(crate) fn delete(&self) -> Result<DeleteOptions, Status> {
        let propagation = self.get("propagationPolicy").filter(|policy| !policy.is_empty());
        let orphan = self.optional_flag("orphanDependents");
        Ok(DeleteOptions {
            propagation: propagation_policy(propagation, orphan)?,
            grace_period_seconds: self.number("gracePeriodSeconds")?,
            ..DeleteOptions::default()
        })
    }
}

/// `propagationPolicy` and its predecessor.
pub(crate) fn propagation_policy(
    policy: Option<&str>,
    orphan: Option<bool>,
) -> Result<Option<Propagation>, Status> {
    match (policy, orphan) {
        (Some(policy), Some(_)) => {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            let error = FieldError::invalid("propagationPolicy", &policy.into(), why);
            Err(invalid("DeleteOptions", &[error]))
        }
        (None, Some(true)) => Ok(Some(Propagation::Orphan)),
        (None, Some(false)) => Ok(Some(Propagation::Background)),
        (None, None) => Ok(None),
        (Some("Orphan"), None) => Ok(Some(Propagation::Orphan)),
        (Some("Background"), None) => Ok(Some(Propagation::Background)),
        (Some("Foreground"), None) => Ok(Some(Propagation::Foreground)),
        (Some(other), None) => {
            let supported = ["Foreground", "Background", "Orphan"];
            let error = FieldError::not_supported("propagationPolicy", &other.into(), &supported);
            Err(invalid("DeleteOptions", &[error]))
        }
    }
}

/// 422 for invalid options.
pub(crate) fn invalid(kind: &str, errors: &[FieldError]) -> Status {
    Status::invalid(GroupName { group: "meta.k8s.io", name: kind }, "", errors)
}

/// Parses a duration in Go's notation: `1m30s`, `500ms`.
pub(crate) fn go_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let unit = match &rest[..end] {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        total += number * unit;
        rest = &rest[end..];
    }
    Duration::try_from_secs_f64(total).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_in_go_notation() {
        assert_eq!(go_duration("1m30s"), Some(Duration::from_secs(90)));
        assert_eq!(go_duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(go_duration("0s"), Some(Duration::ZERO));
        for bad in ["abc", "", "5", "s", "1x"] {
            assert_eq!(go_duration(bad), None, "{bad}");
        }
    }

    #[test]
    fn propagation_options_are_mutually_exclusive() {
        assert_eq!(propagation_policy(Some("Orphan"), Some(true)).unwrap_err().code, 422);
        assert_eq!(propagation_policy(None, Some(false)).unwrap(), Some(Propagation::Background));
        assert_eq!(propagation_policy(Some("Sideways"), None).unwrap_err().code, 422);
    }
}
