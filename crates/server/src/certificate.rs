//! Keeps the names in the port's certificate equal to the hosts in the settings.

use std::sync::Arc;

use drover_apiserver::auth::pki::{Pki, ServingCertificate};
use drover_provisioning::settings::{CurrentSettings, Settings};
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Follows the settings until `stop`; `names` are in the certificate in any case.
pub async fn follow(
    serving: Arc<ServingCertificate>,
    pki: Arc<Pki>,
    names: Vec<String>,
    settings: CurrentSettings,
    stop: CancellationToken,
) {
    let changed = Arc::new(Notify::new());
    let notify = changed.clone();
    settings.on_change(move || notify.notify_one());
    let mut served = names.clone();
    loop {
        let wanted = with_hosts(&names, &settings.now());
        if wanted != served {
            // If a certificate cannot be issued, it is tried again only when the hosts change.
            match issue(&serving, &pki, wanted.clone()).await {
                Ok(()) => tracing::info!(names = wanted.join(", "), "issued a new certificate for the port"),
                Err(error) => {
                    tracing::warn!(names = wanted.join(", "), %error, "failed to issue a certificate for these names")
                }
            }
            served = wanted;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = changed.notified() => {}
        }
    }
}

async fn issue(serving: &ServingCertificate, pki: &Arc<Pki>, names: Vec<String>) -> anyhow::Result<()> {
    let pki = pki.clone();
    let pair = tokio::task::spawn_blocking(move || pki.serving(&names, Timestamp::now())).await??;
    Ok(serving.replace(&pair)?)
}

/// The host of a URL in the form of a certificate.
pub fn host_of(url: &str) -> Option<String> {
    let host = url.parse::<http::Uri>().ok()?.host()?.trim_matches(['[', ']']).to_owned();
    (!host.is_empty()).then_some(host)
}

fn with_hosts(names: &[String], settings: &Settings) -> Vec<String> {
    let mut all = names.to_vec();
    all.extend(
        [&settings.server_url, &settings.internal_server_url].into_iter().filter_map(|url| host_of(url)),
    );
    all.sort();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_certificate_contains_the_hosts_of_both_urls() {
        let names = ["127.0.0.1".to_owned(), "localhost".to_owned()];
        let mut settings =
            Settings { internal_server_url: "https://127.0.0.1:8443".into(), ..Settings::default() };
        assert_eq!(with_hosts(&names, &settings), names);
        settings.server_url = "https://[fd00::1]:8443".into();
        assert_eq!(with_hosts(&names, &settings), ["127.0.0.1", "fd00::1", "localhost"]);
        settings.server_url = "https://drover.example".into();
        assert_eq!(with_hosts(&names, &settings), ["127.0.0.1", "drover.example", "localhost"]);
    }
}
