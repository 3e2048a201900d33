//! Content negotiation: the first clause of `Accept` that the server supports determines the format.

use http::HeaderMap;
use http::header::ACCEPT;

use crate::status::Status;

/// The encoding of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Yaml,
}

impl Encoding {
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
        }
    }
}

/// The representation of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Object,
    Table,
    /// `PartialObjectMetadata`, or a list of them.
    Metadata,
    /// Aggregated discovery.
    Aggregated,
}

/// The representations that an endpoint supports besides plain objects.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Offer {
    pub(crate) table: bool,
    pub(crate) metadata: bool,
    pub(crate) metadata_list: bool,
    pub(crate) aggregated: bool,
}

/// The negotiated format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) encoding: Encoding,
    pub(crate) shape: Shape,
}

impl Form {
    pub(crate) const JSON: Self = Self { encoding: Encoding::Json, shape: Shape::Object };
}

const ACCEPTED: [&str; 2] = ["application/json", "application/yaml"];

/// Chooses the form.
pub(crate) fn negotiate(headers: &HeaderMap, offer: Offer) -> Result<Form, Status> {
    let mut clauses: Vec<(f32, &str)> = Vec::new();
    for header in headers.get_all(ACCEPT) {
        let Ok(text) = header.to_str() else { continue };
        clauses.extend(text.split(',').map(|clause| (quality(clause), clause.trim())));
    }
    clauses.retain(|(_, clause)| !clause.is_empty());
    if clauses.is_empty() {
        return Ok(Form::JSON);
    }
    clauses.sort_by(|a, b| b.0.total_cmp(&a.0));
    clauses
        .iter()
        .find_map(|(_, clause)| form(clause, offer))
        .ok_or_else(|| Status::not_acceptable(&ACCEPTED))
}

fn parameters(clause: &str) -> impl Iterator<Item = (&str, &str)> {
    clause
        .split(';')
        .skip(1)
        .filter_map(|part| part.trim().split_once('='))
        .map(|(k, v)| (k.trim(), v.trim()))
}

fn quality(clause: &str) -> f32 {
    parameters(clause).find(|(key, _)| *key == "q").and_then(|(_, value)| value.parse().ok()).unwrap_or(1.0)
}

fn form(clause: &str, offer: Offer) -> Option<Form> {
    let media = clause.split(';').next().unwrap_or_default().trim();
    let encoding = match media {
        "application/json" | "application/*" | "*/*" => Encoding::Json,
        "application/yaml" => Encoding::Yaml,
        _ => return None,
    };
    let find = |name: &str| parameters(clause).find(|(key, _)| *key == name).map(|(_, value)| value);
    let shape = match (find("as"), find("g"), find("v")) {
        (None, _, _) => Shape::Object,
        (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2")) if offer.aggregated => {
            Shape::Aggregated
        }
        (Some(kind), Some("meta.k8s.io"), Some("v1" | "v1beta1")) => match kind {
            "Table" if offer.table => Shape::Table,
            "PartialObjectMetadata" if offer.metadata => Shape::Metadata,
            "PartialObjectMetadataList" if offer.metadata_list => Shape::Metadata,
            _ => return None,
        },
        _ => return None,
    };
    Some(Form { encoding, shape })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(accept: &str, offer: Offer) -> Result<Form, u16> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().unwrap());
        negotiate(&headers, offer).map_err(|status| status.code)
    }

    #[test]
    fn check_3_clauses_are_tried_in_order() {
        let all = Offer { table: true, metadata: true, metadata_list: false, aggregated: false };
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        assert_eq!(ask(table, all).unwrap().shape, Shape::Table);
        assert_eq!(ask(table, Offer::default()).unwrap().shape, Shape::Object);
        assert_eq!(ask("application/json;as=Table;v=v1;g=meta.k8s.io", Offer::default()), Err(406));
        assert_eq!(ask("application/vnd.kubernetes.protobuf, */*", all), Ok(Form::JSON));
        assert_eq!(ask("application/vnd.foo", all), Err(406));
        assert_eq!(
            ask("application/json;q=0.1,application/yaml;q=0.9", all).unwrap().encoding,
            Encoding::Yaml
        );
        let list = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
        assert_eq!(ask(list, all), Err(406));
    }
}
