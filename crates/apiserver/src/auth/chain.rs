//! The order in which credentials are tried, and the result if none is accepted.

use crate::identity::{Authenticator, UserInfo};
use crate::status::Status;
use futures::future::BoxFuture;
use std::sync::Arc;

const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// Tries authenticators in order; the first user is used. A credential that no authenticator accepts is a 401, and
/// never becomes anonymous.
pub struct Chain {
    authenticators: Vec<Arc<dyn Authenticator>>,
    anonymous: bool,
}

impl Chain {
    /// `anonymous` accepts requests without credentials as `system:anonymous`.
    pub fn new(authenticators: Vec<Arc<dyn Authenticator>>, anonymous: bool) -> Self {
        Self { authenticators, anonymous }
    }
}

impl Authenticator for Chain {
    fn authenticate<'a>(
        &'a self,
        request: &'a http::request::Parts,
    ) -> BoxFuture<'a, Result<Option<UserInfo>, Status>> {
        Box::pin(async move {
            let mut refused = None;
            for authenticator in &self.authenticators {
                match authenticator.authenticate(request).await {
                    Ok(Some(user)) => return Ok(Some(authenticated(user))),
                    Ok(None) => {}
                    // Another credential of the same request may be valid.
                    Err(status) => refused = Some(status),
                }
            }
            if let Some(status) = refused {
                return Err(status);
            }
            if bearer_token(request).is_some() || !self.anonymous {
                return Err(Status::unauthorized());
            }
            Ok(Some(UserInfo::anonymous()))
        })
    }
}

/// The token of `Authorization: Bearer`, if present.
pub fn bearer_token(request: &http::request::Parts) -> Option<&str> {
    let value = request.headers.get(http::header::AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// All authenticated users are members of one group.
pub fn authenticated(mut user: UserInfo) -> UserInfo {
    let known =
        user.name == "system:anonymous" || user.in_group(AUTHENTICATED) || user.in_group(UNAUTHENTICATED);
    if !known {
        user.groups.push(AUTHENTICATED.to_owned());
    }
    user
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(&'static str);

    impl Authenticator for Fixed {
        fn authenticate<'a>(
            &'a self,
            request: &'a http::request::Parts,
        ) -> BoxFuture<'a, Result<Option<UserInfo>, Status>> {
            let user = (bearer_token(request) == Some(self.0))
                .then(|| UserInfo { name: self.0.into(), ..UserInfo::default() });
            Box::pin(std::future::ready(Ok(user)))
        }
    }

    fn parts(authorization: Option<&str>) -> http::request::Parts {
        let mut request = http::Request::new(());
        if let Some(value) = authorization {
            request.headers_mut().insert("authorization", value.parse().unwrap());
        }
        request.into_parts().0
    }

    #[tokio::test]
    async fn the_first_match_wins_and_invalid_tokens_are_not_anonymous() {
        let chain = Chain::new(vec![Arc::new(Fixed("a")), Arc::new(Fixed("b"))], true);
        let user = chain.authenticate(&parts(Some("Bearer b"))).await.unwrap().unwrap();
        assert_eq!((user.name.as_str(), user.groups), ("b", vec![AUTHENTICATED.to_owned()]));
        assert_eq!(chain.authenticate(&parts(Some("bearer c"))).await.unwrap_err().code, 401);
        let anonymous = chain.authenticate(&parts(None)).await.unwrap().unwrap();
        assert_eq!(anonymous, UserInfo::anonymous());
        assert_eq!(
            chain.authenticate(&parts(Some("Basic eDp5"))).await.unwrap().unwrap(),
            UserInfo::anonymous()
        );
        let closed = Chain::new(Vec::new(), false);
        assert_eq!(closed.authenticate(&parts(None)).await.unwrap_err().code, 401);
    }
}
