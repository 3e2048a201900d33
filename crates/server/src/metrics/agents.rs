//! Agents that watch their plans.

use http::Request;
use http_body_util::BodyExt as _;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use drover_access::downstream::RequestBody;
use drover_apiserver::http::pattern;

const SECRETS: &str = "/api/v1/namespaces/{namespace}/secrets";

/// `drover_agents_connected`: open watches of a single Secret through the port. Agents watch their plans in this way.
#[derive(Clone, Debug, Default)]
pub struct Agents(Gauge);

/// One agent.
pub(crate) struct Connected(Gauge);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Agents {
    pub fn register(&self, registry: &mut Registry) {
        let help = "Agents that follow their plan: open watches of a single Secret";
        registry.register("drover_agents_connected", help, self.0.clone());
    }

    /// Whether a request is that of an agent.
    pub(crate) fn is_agent<B>(request: &Request<B>) -> bool {
        let query = request.uri().query().unwrap_or_default();
        let has = |wanted: fn(&str, &str) -> bool| {
            query.split('&').filter_map(|pair| pair.split_once('=')).any(|(key, value)| wanted(key, value))
        };
        has(|key, value| key == "watch" && matches!(value, "true" | "1"))
            && has(|key, value| key == "fieldSelector" && value.starts_with("metadata.name"))
            && pattern::matches(SECRETS, request.uri().path())
    }

    /// Counts an agent until the response of its watch ends.
    pub(crate) fn count(&self, answer: RequestBody) -> RequestBody {
        self.0.inc();
        let connected = Connected(self.0.clone());
        answer
            .map_frame(move |frame| {
                let _held = &connected;
                frame
            })
            .boxed_unsync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_watches_one_secret() {
        let is_agent = |uri: &str| Agents::is_agent(&Request::get(uri).body(()).unwrap());
        let secrets = "/api/v1/namespaces/fleet-default/secrets";
        assert!(is_agent(&format!("{secrets}?watch=true&fieldSelector=metadata.name%3Dx&resourceVersion=7")));
        assert!(is_agent(&format!("{secrets}?fieldSelector=metadata.name=x&watch=1")));
        assert!(!is_agent(&format!("{secrets}?watch=true")));
        assert!(!is_agent(&format!("{secrets}?fieldSelector=metadata.name=x")));
        assert!(!is_agent("/api/v1/namespaces/a/configmaps?watch=true&fieldSelector=metadata.name=x"));
    }
}
