//! Impersonation by `Impersonate-User` and related headers, if the caller has the permission.

use super::rbac::policy::service_account_of;
use super::serviceaccount::claims;
use crate::identity::{Attributes, Authorizer, Impersonation, UserInfo};
use crate::status::{GroupName, Status};
use futures::future::BoxFuture;
use http::HeaderMap;
use std::collections::BTreeMap;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";
const AUTHENTICATION: &str = "authentication.k8s.io";

/// Impersonation by headers.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeaderImpersonation;

impl Impersonation for HeaderImpersonation {
    fn impersonate<'a>(
        &'a self,
        user: UserInfo,
        request: &'a http::request::Parts,
        authorizer: &'a dyn Authorizer,
    ) -> BoxFuture<'a, Result<UserInfo, Status>> {
        Box::pin(async move {
            let Some(wanted) = Wanted::read(&request.headers)? else { return Ok(user) };
            for attributes in wanted.questions(&user) {
                let decision = authorizer.authorize(&attributes).await?;
                if !decision.allowed {
                    let about = GroupName { group: &attributes.group, name: &attributes.resource };
                    return Err(Status::forbidden(
                        about,
                        &attributes.name,
                        &attributes.denial(&decision.reason),
                    ));
                }
            }
            Ok(wanted.user())
        })
    }
}

/// The user to impersonate, from the headers.
#[derive(Debug, PartialEq)]
struct Wanted {
    name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl Wanted {
    fn read(headers: &HeaderMap) -> Result<Option<Wanted>, Status> {
        let all = |name: &str| -> Vec<String> {
            headers.get_all(name).iter().filter_map(|v| v.to_str().ok().map(str::to_owned)).collect()
        };
        let one = |name: &str| all(name).into_iter().next().unwrap_or_default();
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in headers {
            if let Some(key) = name.as_str().strip_prefix(EXTRA)
                && let Ok(value) = value.to_str()
            {
                extra.entry(percent_decoded(key)).or_default().push(value.to_owned());
            }
        }
        let wanted = Wanted { name: one(USER), uid: one(UID), groups: all(GROUP), extra };
        if !wanted.name.is_empty() {
            return Ok(Some(wanted));
        }
        if wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty() {
            return Ok(None);
        }
        Err(Status::bad_request(
            "requested impersonation of groups, uid or extra without impersonating a user",
        ))
    }

    /// One authorizer request per impersonated attribute.
    fn questions(&self, caller: &UserInfo) -> Vec<Attributes> {
        let ask = |group: &str, namespace: &str, resource: &str, subresource: &str, name: &str| Attributes {
            user: caller.clone(),
            verb: "impersonate".into(),
            group: group.into(),
            version: "v1".into(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: namespace.into(),
            name: name.into(),
            resource_request: true,
            ..Attributes::default()
        };
        let mut questions = vec![match service_account_of(&self.name) {
            Some((namespace, name)) => ask("", namespace, "serviceaccounts", "", name),
            None => ask("", "", "users", "", &self.name),
        }];
        questions.extend(self.groups.iter().map(|g| ask("", "", "groups", "", g)));
        for (key, values) in &self.extra {
            questions.extend(values.iter().map(|v| ask(AUTHENTICATION, "", "userextras", key, v)));
        }
        if !self.uid.is_empty() {
            questions.push(ask(AUTHENTICATION, "", "uids", "", &self.uid));
        }
        questions
    }

    fn user(self) -> UserInfo {
        let mut groups = self.groups;
        if groups.is_empty()
            && let Some((namespace, _)) = service_account_of(&self.name)
        {
            groups = claims::groups(namespace);
        }
        let user = UserInfo { name: self.name, uid: self.uid, groups, extra: self.extra };
        if user.name == "system:anonymous" && user.groups.is_empty() {
            return UserInfo { extra: user.extra, uid: user.uid, ..UserInfo::anonymous() };
        }
        super::chain::authenticated(user)
    }
}

/// Keys in header names are percent-encoded; invalid encodings are kept unchanged.
fn percent_decoded(key: &str) -> String {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let hex = tail
            .get(..2)
            .and_then(|h| std::str::from_utf8(h).ok())
            .and_then(|h| u8::from_str_radix(h, 16).ok());
        match (first, hex) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&'static str, &str)]) -> Result<Option<Wanted>, Status> {
        let mut map = HeaderMap::new();
        for (k, v) in headers {
            map.append(*k, v.parse().unwrap());
        }
        Wanted::read(&map)
    }

    #[test]
    fn headers_without_a_user_are_a_bad_request() {
        assert_eq!(read(&[]).unwrap(), None);
        for header in [GROUP, UID, "impersonate-extra-scopes"] {
            assert_eq!(read(&[(header, "x")]).unwrap_err().code, 400, "{header}");
        }
    }

    #[test]
    fn each_attribute_is_authorized_separately() {
        let wanted = read(&[
            (USER, "jane"),
            (GROUP, "a"),
            (GROUP, "b"),
            (UID, "7"),
            ("impersonate-extra-acme.com%2fproject", "p"),
        ])
        .unwrap()
        .unwrap();
        let asked: Vec<(String, String, String)> = wanted
            .questions(&UserInfo::default())
            .into_iter()
            .map(|a| (a.resource, a.subresource, a.name))
            .collect();
        let want = [
            ("users", "", "jane"),
            ("groups", "", "a"),
            ("groups", "", "b"),
            ("userextras", "acme.com/project", "p"),
            ("uids", "", "7"),
        ];
        let want: Vec<_> = want.iter().map(|(a, b, c)| ((*a).into(), (*b).into(), (*c).into())).collect();
        assert_eq!(asked, want);
        assert_eq!(wanted.user().groups, ["a", "b", "system:authenticated"]);
    }

    #[test]
    fn service_accounts_get_their_groups_and_anonymous_stays_unauthenticated() {
        let sa = read(&[(USER, "system:serviceaccount:n:s")]).unwrap().unwrap();
        assert_eq!(sa.questions(&UserInfo::default())[0].resource, "serviceaccounts");
        assert_eq!(
            sa.user().groups,
            ["system:serviceaccounts", "system:serviceaccounts:n", "system:authenticated"]
        );
        assert_eq!(read(&[(USER, "system:anonymous")]).unwrap().unwrap().user(), UserInfo::anonymous());
    }
}
