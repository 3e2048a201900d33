//! Tokens of service accounts, of nodes and of the embedding program (Check 38).

use crate::harness::{Cluster, Setup, on_both, uid};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use drover_apiserver::UserInfo;
use drover_apiserver::auth::chain::bearer_token;
use drover_apiserver::clock::TokioClock;
use drover_apiserver::identity::Authenticator;
use drover_apiserver::status::Status;
use drover_apiserver::storage::{MemoryStorage, Retention};
use futures::future::BoxFuture;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const ACCOUNTS: &str = "/api/v1/namespaces/a/serviceaccounts";
const SECRETS: &str = "/api/v1/namespaces/a/secrets";

async fn account(cluster: &Cluster) -> Value {
    cluster.namespace("a").await;
    cluster.post(ACCOUNTS, json!({"metadata": {"name": "robot"}})).await.expect(201)
}

async fn request_token(cluster: &Cluster, spec: Value) -> Value {
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
    cluster.post(&format!("{ACCOUNTS}/robot/token"), body).await.expect(201)
}

/// The user that the server authenticates with this token.
async fn whoami(cluster: &Cluster, token: &str) -> (u16, Value) {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let header = format!("Bearer {token}");
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let answer = cluster.call_with(None, "POST", path, Some(&review), &[("authorization", &header)]).await;
    (answer.code, answer.body["status"]["userInfo"].clone())
}

#[tokio::test]
async fn kubernetes_check_38_a_token_is_valid_while_its_account_exists() {
    on_both(|cluster| async move {
        let account = account(&cluster).await;
        let answer = request_token(&cluster, json!({})).await;
        assert_eq!(answer["spec"]["expirationSeconds"], 3600);
        assert!(answer["status"]["expirationTimestamp"].is_string());
        let token = answer["status"]["token"].as_str().unwrap();
        let (code, me) = whoami(&cluster, token).await;
        assert_eq!(code, 201);
        assert_eq!(me["username"], "system:serviceaccount:a:robot");
        assert_eq!(me["uid"], uid(&account));
        assert_eq!(
            me["groups"],
            json!(["system:serviceaccounts", "system:serviceaccounts:a", "system:authenticated"])
        );
        assert!(
            me["extra"]["authentication.kubernetes.io/credential-id"][0]
                .as_str()
                .unwrap()
                .starts_with("JTI=")
        );

        cluster.delete(&format!("{ACCOUNTS}/robot"), json!({})).await.expect(200);
        assert_eq!(whoami(&cluster, token).await.0, 401);
        cluster.post(ACCOUNTS, json!({"metadata": {"name": "robot"}})).await.expect(201);
        assert_eq!(whoami(&cluster, token).await.0, 401, "another account of the same name");
    })
    .await;
}

#[tokio::test]
async fn kubernetes_check_38_a_bound_token_becomes_invalid_with_its_secret() {
    on_both(|cluster| async move {
        account(&cluster).await;
        let secret = cluster.post(SECRETS, json!({"metadata": {"name": "s"}})).await.expect(201);
        let bound = |uid: &str| json!({"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "s", "uid": uid}});
        let token = request_token(&cluster, bound(&uid(&secret))).await["status"]["token"].as_str().unwrap().to_owned();
        assert_eq!(whoami(&cluster, &token).await.0, 201);
        let wrong = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": bound("other")});
        cluster.post(&format!("{ACCOUNTS}/robot/token"), wrong).await.expect(409);
        cluster.delete(&format!("{SECRETS}/s"), json!({})).await.expect(200);
        assert_eq!(whoami(&cluster, &token).await.0, 401);
        let gone = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": bound("")});
        cluster.post(&format!("{ACCOUNTS}/robot/token"), gone).await.expect(404);
    })
    .await;
}

#[tokio::test]
async fn kubernetes_check_38_durations_below_ten_minutes_are_rejected() {
    on_both(|cluster| async move {
        account(&cluster).await;
        let body = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {"expirationSeconds": 60}});
        let refused = cluster.post(&format!("{ACCOUNTS}/robot/token"), body).await.expect(422);
        assert!(
            refused["message"].as_str().unwrap().contains("may not specify a duration less than 10 minutes"),
            "{refused}"
        );
        cluster.post(&format!("{ACCOUNTS}/nobody/token"), json!({"spec": {}})).await.expect(404);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn kubernetes_check_38_an_expired_token_is_rejected() {
    let clock = Arc::new(TokioClock::starting_at("2026-01-01T00:00:00Z".parse().unwrap()));
    let storage = Arc::new(MemoryStorage::with(clock.clone(), Retention::default()));
    let cluster = Setup { clock, ..Setup::new(storage) }.start().await;
    account(&cluster).await;
    let token = request_token(&cluster, json!({"expirationSeconds": 600})).await["status"]["token"].clone();
    let token = token.as_str().unwrap();
    tokio::time::sleep(Duration::from_secs(599)).await;
    assert_eq!(whoami(&cluster, token).await.0, 201);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(whoami(&cluster, token).await.0, 401);
}

#[tokio::test]
async fn token_secrets_are_completed_at_once_and_deleted_with_their_account() {
    on_both(|cluster| async move {
        let account = account(&cluster).await;
        let kind = "kubernetes.io/service-account-token";
        cluster.post(SECRETS, json!({"metadata": {"name": "t"}, "type": kind})).await.expect(422);
        let annotations = json!({"kubernetes.io/service-account.name": "robot"});
        let body = json!({"metadata": {"name": "t", "annotations": annotations}, "type": kind});
        let secret = cluster.post(SECRETS, body.clone()).await.expect(201);
        let data = |secret: &Value, key: &str| {
            String::from_utf8(STANDARD.decode(secret["data"][key].as_str().unwrap()).unwrap()).unwrap()
        };
        assert_eq!(data(&secret, "namespace"), "a");
        assert_eq!(data(&secret, "ca.crt"), cluster.pki.ca_pem());
        assert_eq!(secret["metadata"]["annotations"]["kubernetes.io/service-account.uid"], uid(&account));
        let token = data(&secret, "token");
        let (code, me) = whoami(&cluster, &token).await;
        assert_eq!((code, me["username"].as_str().unwrap()), (201, "system:serviceaccount:a:robot"));

        let again =
            cluster.patch(&format!("{SECRETS}/t"), json!({"data": {"token": null}})).await.expect(200);
        assert!(!data(&again, "token").is_empty(), "a removed token is restored");

        cluster.delete(&format!("{ACCOUNTS}/robot"), json!({})).await.expect(200);
        assert_eq!(whoami(&cluster, &data(&again, "token")).await.0, 401);
        cluster.gone(&format!("{SECRETS}/t")).await;
        cluster.post(SECRETS, body).await.expect(201);
        cluster.gone(&format!("{SECRETS}/t")).await;
    })
    .await;
}

#[tokio::test]
async fn token_reviews_check_audiences_and_reject_other_tokens() {
    on_both(|cluster| async move {
        account(&cluster).await;
        let ours = request_token(&cluster, json!({})).await["status"]["token"].clone();
        let vault = request_token(&cluster, json!({"audiences": ["vault"]})).await["status"]["token"].clone();
        assert_eq!(whoami(&cluster, vault.as_str().unwrap()).await.0, 401, "for another audience");
        let review = |spec: Value| {
            let cluster = &cluster;
            async move { cluster.post("/apis/authentication.k8s.io/v1/tokenreviews", json!({"spec": spec})).await }
        };
        let good = review(json!({"token": ours})).await.expect(201);
        assert_eq!(good["status"]["authenticated"], true);
        assert_eq!(good["status"]["user"]["username"], "system:serviceaccount:a:robot");
        let other = review(json!({"token": vault, "audiences": ["vault"]})).await.expect(201);
        assert_eq!(other["status"]["audiences"], json!(["vault"]));
        assert_eq!(review(json!({"token": vault})).await.expect(201)["status"]["authenticated"], false);
        assert_eq!(review(json!({"token": "junk\n"})).await.expect(201)["status"]["authenticated"], false);
        review(json!({})).await.expect(400);
    })
    .await;
}

#[tokio::test]
async fn bootstrap_tokens_and_invalid_tokens() {
    on_both(|cluster| async move {
        let secret = json!({
            "metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token",
            "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef",
                "usage-bootstrap-authentication": "true", "auth-extra-groups": "system:bootstrappers:nodes"},
        });
        cluster.post("/api/v1/namespaces/kube-system/secrets", secret).await.expect(201);
        let (code, me) = whoami(&cluster, "abcdef.0123456789abcdef").await;
        assert_eq!((code, me["username"].as_str().unwrap()), (201, "system:bootstrap:abcdef"));
        assert_eq!(
            me["groups"],
            json!(["system:bootstrappers", "system:bootstrappers:nodes", "system:authenticated"])
        );
        for bad in ["abcdef.0123456789abcdee", "zzzzzz.0123456789abcdef", "junk", "a.b.c"] {
            assert_eq!(whoami(&cluster, bad).await.0, 401, "{bad}");
        }
        let anonymous = cluster.call(None, "GET", "/version", None).await;
        assert_eq!(anonymous.code, 200);
        let refused = cluster.call(None, "GET", "/api/v1/nodes", None).await.expect(403);
        assert!(refused["message"].as_str().unwrap().contains(r#"User "system:anonymous""#));
    })
    .await;
}

struct Fixed;

impl Authenticator for Fixed {
    fn authenticate<'a>(
        &'a self,
        request: &'a http::request::Parts,
    ) -> BoxFuture<'a, Result<Option<UserInfo>, Status>> {
        let user = (bearer_token(request) == Some("kubeconfig-u-1:secret"))
            .then(|| UserInfo { name: "u-1".into(), ..UserInfo::default() });
        Box::pin(std::future::ready(Ok(user)))
    }
}

#[tokio::test]
async fn the_embedding_program_adds_its_own_tokens() {
    let setup = Setup {
        configure: Box::new(|options| options.authenticators.push(Arc::new(Fixed))),
        ..Setup::new(Arc::new(MemoryStorage::new()))
    };
    let cluster = setup.start().await;
    let (code, me) = whoami(&cluster, "kubeconfig-u-1:secret").await;
    assert_eq!((code, me), (201, json!({"username": "u-1", "groups": ["system:authenticated"]})));
    assert_eq!(whoami(&cluster, "kubeconfig-u-1:wrong").await.0, 401);
}

#[tokio::test]
async fn the_key_set_verifies_issued_tokens() {
    use base64::engine::general_purpose::URL_SAFE_NO_PAD as B64;
    on_both(|cluster| async move {
        account(&cluster).await;
        let token = request_token(&cluster, json!({})).await["status"]["token"].as_str().unwrap().to_owned();
        let configuration = cluster.get("/.well-known/openid-configuration").await.expect(200);
        assert!(configuration["jwks_uri"].as_str().unwrap().ends_with("/openid/v1/jwks"));
        let key = cluster.get("/openid/v1/jwks").await.expect(200)["keys"][0].clone();
        let coordinate = |name: &str| B64.decode(key[name].as_str().unwrap()).unwrap();
        let point = [vec![4], coordinate("x"), coordinate("y")].concat();
        let (signed, signature) = token.rsplit_once('.').unwrap();
        ring::signature::UnparsedPublicKey::new(&ring::signature::ECDSA_P256_SHA256_FIXED, point)
            .verify(signed.as_bytes(), &B64.decode(signature).unwrap())
            .unwrap();
        let claims: Value =
            serde_json::from_slice(&B64.decode(signed.split_once('.').unwrap().1).unwrap()).unwrap();
        assert_eq!(claims["iss"], configuration["issuer"]);
        let anonymous = cluster.call(None, "GET", "/openid/v1/jwks", None).await;
        assert_eq!(anonymous.code, 403);
    })
    .await;
}
