//! Reviews of identities and permissions: created and answered, never stored.

use super::chain::authenticated;
use super::rbac::{Rbac, Rule};
use super::serviceaccount::Issuer;
use crate::identity::{Attributes, Authenticator, Authorizer, UserInfo};
use crate::objects::{Objects, WriteContext};
use crate::resources::{Resource, ResourceDef, Virtual};
use crate::status::{FieldError, GroupName, Status};
use crate::strategy::Plain;
use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";

/// Answers the reviews.
pub struct Reviewer {
    /// Authenticates tokens.
    pub authenticator: Arc<dyn Authenticator>,
    /// Checks permissions.
    pub authorizer: Arc<dyn Authorizer>,
    /// Lists permissions.
    pub rbac: Arc<Rbac>,
    /// Authenticates tokens for other audiences.
    pub issuer: Option<Arc<Issuer>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Token,
    SelfSubject,
    Access,
    LocalAccess,
    SelfAccess,
    SelfRules,
}

struct Review {
    kind: Kind,
    reviewer: Arc<Reviewer>,
}

/// The review resources.
pub fn resources(reviewer: &Arc<Reviewer>) -> Vec<Resource> {
    let table = [
        (AUTHENTICATION, "tokenreviews", "TokenReview", false, Kind::Token),
        (AUTHENTICATION, "selfsubjectreviews", "SelfSubjectReview", false, Kind::SelfSubject),
        (AUTHORIZATION, "subjectaccessreviews", "SubjectAccessReview", false, Kind::Access),
        (AUTHORIZATION, "localsubjectaccessreviews", "LocalSubjectAccessReview", true, Kind::LocalAccess),
        (AUTHORIZATION, "selfsubjectaccessreviews", "SelfSubjectAccessReview", false, Kind::SelfAccess),
        (AUTHORIZATION, "selfsubjectrulesreviews", "SelfSubjectRulesReview", false, Kind::SelfRules),
    ];
    let resource = |(group, plural, name, namespaced, kind): (&str, &str, &str, bool, Kind)| {
        let def = ResourceDef {
            group: group.into(),
            version: "v1".into(),
            plural: plural.into(),
            singular: name.to_ascii_lowercase(),
            kind: name.into(),
            list_kind: format!("{name}List"),
            namespaced,
            verbs: vec!["create"],
            ..ResourceDef::default()
        };
        Resource::unstored(def, Arc::new(Plain), Arc::new(Review { kind, reviewer: reviewer.clone() }))
    };
    table.into_iter().map(resource).collect()
}

impl Virtual for Review {
    fn create<'a>(
        &'a self,
        context: &'a WriteContext,
        _objects: &'a Objects,
        namespace: &'a str,
        mut object: Value,
    ) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(async move {
            let status = match self.kind {
                Kind::Token => self.reviewer.token(&object).await?,
                Kind::SelfSubject => json!({"userInfo": user_json(&context.user)}),
                Kind::Access => {
                    self.reviewer.access(&object, &subject_of(&object), "SubjectAccessReview", true).await?
                }
                Kind::LocalAccess => {
                    let asked =
                        object["spec"]["resourceAttributes"]["namespace"].as_str().unwrap_or_default();
                    if object["spec"]["resourceAttributes"].is_object() && asked != namespace {
                        let why =
                            format!("spec.resourceAttributes.namespace must match namespace: {namespace}");
                        return Err(Status::bad_request(why));
                    }
                    self.reviewer
                        .access(&object, &subject_of(&object), "LocalSubjectAccessReview", true)
                        .await?
                }
                Kind::SelfAccess => {
                    self.reviewer.access(&object, &context.user, "SelfSubjectAccessReview", false).await?
                }
                Kind::SelfRules => self.reviewer.rules(&object, &context.user)?,
            };
            let fields = crate::object::object_mut(&mut object);
            if !fields.get("metadata").is_some_and(Value::is_object) {
                fields.insert("metadata".into(), json!({}));
            }
            fields.insert("status".into(), status);
            Ok(object)
        })
    }
}

impl Reviewer {
    async fn token(&self, object: &Value) -> Result<Value, Status> {
        let token = object["spec"]["token"].as_str().unwrap_or_default();
        if token.is_empty() {
            return Err(Status::bad_request("token is required for TokenReview in authentication"));
        }
        let audiences: Vec<String> = strings(&object["spec"]["audiences"]);
        if let Some(issuer) = self.issuer.as_ref().filter(|i| i.is_ours(token)) {
            let wanted = if audiences.is_empty() { issuer.options().audiences.clone() } else { audiences };
            return Ok(match issuer.authenticate(token, &wanted) {
                Ok((user, fit)) => {
                    json!({"authenticated": true, "user": user_json(&authenticated(user)), "audiences": fit})
                }
                Err(why) => json!({"authenticated": false, "user": {}, "error": why}),
            });
        }
        let Ok(value) = http::HeaderValue::try_from(format!("Bearer {token}")) else {
            return Ok(json!({"authenticated": false, "user": {}, "error": "invalid token"}));
        };
        let mut request = http::Request::new(());
        request.headers_mut().insert(http::header::AUTHORIZATION, value);
        let (parts, ()) = request.into_parts();
        Ok(match self.authenticator.authenticate(&parts).await {
            Ok(Some(user)) => json!({"authenticated": true, "user": user_json(&user)}),
            _ => json!({"authenticated": false, "user": {}, "error": "invalid token"}),
        })
    }

    async fn access(
        &self,
        object: &Value,
        user: &UserInfo,
        kind: &str,
        named: bool,
    ) -> Result<Value, Status> {
        let spec = &object["spec"];
        let mut errors = Vec::new();
        let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
        if resource.is_object() == path.is_object() {
            let why = if resource.is_object() {
                "cannot be specified in combination with resourceAttributes"
            } else {
                "exactly one of nonResourceAttributes or resourceAttributes must be specified"
            };
            errors.push(FieldError::invalid("spec.nonResourceAttributes", path, why));
        }
        if named && user.name.is_empty() && user.groups.is_empty() {
            errors.push(FieldError::invalid(
                "spec.user",
                &"".into(),
                "at least one of user or group must be specified",
            ));
        }
        if !errors.is_empty() {
            return Err(Status::invalid(GroupName { group: AUTHORIZATION, name: kind }, "", &errors));
        }
        let text = |from: &Value, key: &str| from[key].as_str().unwrap_or_default().to_owned();
        let attributes = if resource.is_object() {
            Attributes {
                user: user.clone(),
                verb: text(resource, "verb"),
                group: text(resource, "group"),
                version: text(resource, "version"),
                resource: text(resource, "resource"),
                subresource: text(resource, "subresource"),
                namespace: text(resource, "namespace"),
                name: text(resource, "name"),
                resource_request: true,
                path: String::new(),
            }
        } else {
            Attributes {
                user: user.clone(),
                verb: text(path, "verb"),
                path: text(path, "path"),
                ..Attributes::default()
            }
        };
        let decision = self.authorizer.authorize(&attributes).await?;
        let mut status = json!({"allowed": decision.allowed});
        if !decision.reason.is_empty() {
            status["reason"] = decision.reason.into();
        }
        Ok(status)
    }

    fn rules(&self, object: &Value, user: &UserInfo) -> Result<Value, Status> {
        let namespace = object["spec"]["namespace"].as_str().unwrap_or_default();
        if namespace.is_empty() {
            return Err(Status::bad_request("no namespace on request"));
        }
        let (rules, broken) = self.rbac.rules_for(user, namespace);
        let (urls, resources): (Vec<&Rule>, Vec<&Rule>) =
            rules.iter().partition(|r| !r.non_resource_urls.is_empty());
        let mut status =
            json!({"resourceRules": resources, "nonResourceRules": urls, "incomplete": !broken.is_empty()});
        if !broken.is_empty() {
            status["evaluationError"] = broken.join(", ").into();
        }
        Ok(status)
    }
}

fn subject_of(object: &Value) -> UserInfo {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Subject {
        user: String,
        uid: String,
        groups: Option<Vec<String>>,
        extra: Option<BTreeMap<String, Vec<String>>>,
    }
    let subject: Subject = serde_json::from_value(object["spec"].clone()).unwrap_or_default();
    UserInfo {
        name: subject.user,
        uid: subject.uid,
        groups: subject.groups.unwrap_or_default(),
        extra: subject.extra.unwrap_or_default(),
    }
}

fn user_json(user: &UserInfo) -> Value {
    let mut out = Map::new();
    out.insert("username".into(), user.name.as_str().into());
    if !user.uid.is_empty() {
        out.insert("uid".into(), user.uid.as_str().into());
    }
    if !user.groups.is_empty() {
        out.insert("groups".into(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        out.insert("extra".into(), json!(user.extra));
    }
    Value::Object(out)
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}
