//! Lists objects at a revision, in pages.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::Objects;
use crate::resources::Resource;
use crate::selector::{FieldSelector, LabelSelector};
use crate::status::Status;
use crate::storage::{Key, Page, Range, StorageError, Version};

/// How many objects are visited per lock of the index.
const CHUNK: usize = 1_000;

/// `resourceVersionMatch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionMatch {
    /// Exactly this revision.
    Exact,
    /// This revision or a later one.
    NotOlderThan,
}

/// What to list. The caller must check combinations; see `http::query`.
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    /// Labels.
    pub labels: LabelSelector,
    /// Fields.
    pub fields: FieldSelector,
    /// Maximum number of objects; 0 means no limit.
    pub limit: usize,
    /// The token of the previous page.
    pub continue_token: Option<String>,
    /// `resourceVersion`.
    pub resource_version: Option<u64>,
    /// `resourceVersionMatch`.
    pub version_match: Option<VersionMatch>,
}

impl ListOptions {
    /// Whether an object is selected.
    pub fn matches(&self, resource: &Resource, version: &Version) -> bool {
        (self.fields.is_empty() || self.fields.matches(resource, version))
            && (self.labels.is_empty() || self.labels.matches(version.meta()))
    }

    /// The key of the only object that can match, if the selectors name one.
    pub(super) fn single(&self, resource: &Resource, namespace: Option<&str>) -> Option<Key> {
        let name = self.fields.pinned("metadata.name").filter(|name| !name.is_empty())?;
        let namespace = match namespace.or_else(|| self.fields.pinned("metadata.namespace")) {
            Some(namespace) if resource.def.namespaced => namespace,
            None if !resource.def.namespaced => "",
            _ => return None,
        };
        Some(Key::new(resource.storage_group(), &resource.def.plural, namespace, name))
    }

    fn selects_all(&self) -> bool {
        self.fields.is_empty() && self.labels.is_empty()
    }
}

/// A list or a page of one, all at one revision.
#[derive(Debug)]
pub struct ListPage {
    /// Objects in key order, in stored form.
    pub items: Vec<Arc<Version>>,
    /// The revision.
    pub revision: u64,
    /// Token for the next page.
    pub continue_token: Option<String>,
    /// The number of further objects, if known.
    pub remaining: Option<usize>,
}

#[derive(Serialize, Deserialize)]
struct Token {
    v: String,
    rv: i64,
    start: String,
}

const TOKEN_VERSION: &str = "meta.k8s.io/v1";

impl Objects {
    /// Lists the objects of a namespace, or of all namespaces.
    pub async fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<ListPage, Status> {
        let namespace = namespace.filter(|_| resource.def.namespaced);
        let kind = format!("{}/{}/", resource.storage_group(), resource.def.plural);
        let prefix = match namespace {
            Some(namespace) => format!("{kind}{namespace}/"),
            None if resource.def.namespaced => kind,
            // Keys of cluster-scoped objects have an empty namespace.
            None => format!("{kind}/"),
        };
        let token = options.continue_token.as_deref().map(Token::decode).transpose()?;
        let start = token.as_ref().map(|token| format!("{prefix}{}", token.start));
        let revision = self.list_revision(options, token.as_ref()).await?;
        let range = Range {
            group: resource.storage_group(),
            resource: &resource.def.plural,
            namespace,
            start: start.as_deref(),
        };
        let gone = |error: StorageError| self.page_gone(error, token.as_ref());
        let Some(revision) = revision else {
            // Everything at the current revision: one lock, no history.
            let index = self.storage().index();
            let (mut items, revision) = match options.single(resource, namespace) {
                Some(key) => index.list_object(&key),
                None => index.list(&range),
            };
            items.retain(|version| options.matches(resource, version));
            return Ok(ListPage { items, revision, continue_token: None, remaining: None });
        };
        if let (Some(key), None) = (options.single(resource, namespace), &token) {
            let found = self.storage().index().get_at(&key, revision).map_err(gone)?;
            let items = found.into_iter().filter(|version| options.matches(resource, version)).collect();
            return Ok(ListPage { items, revision, continue_token: None, remaining: None });
        }
        if options.limit == 0 {
            let Page { mut items, .. } =
                self.storage().index().page(&range, revision, usize::MAX, false).map_err(gone)?;
            items.retain(|version| options.matches(resource, version));
            return Ok(ListPage { items, revision, continue_token: None, remaining: None });
        }
        let mut page = self.limited(resource, &range, revision, options).map_err(gone)?;
        if let Some(start) = page.continue_token.take() {
            let start = start.strip_prefix(&prefix).unwrap_or_default().to_owned();
            page.continue_token = Some(Token::encode(revision as i64, start));
        }
        Ok(page)
    }

    /// The revision of the list; `None` means all objects at the current revision, which is faster.
    async fn list_revision(
        &self,
        options: &ListOptions,
        token: Option<&Token>,
    ) -> Result<Option<u64>, Status> {
        let current = self.storage().index().revision();
        if let Some(token) = token {
            return Ok(Some(u64::try_from(token.rv).unwrap_or(current)));
        }
        let exact = match (options.resource_version, options.version_match) {
            (Some(revision), Some(VersionMatch::Exact)) => Some(revision),
            // Old clients page with only a resourceVersion and expect exactly that revision.
            (Some(revision), None) if revision > 0 && options.limit > 0 => Some(revision),
            _ => None,
        };
        if let Some(revision) = options.resource_version {
            self.not_older_than(revision).await?;
        }
        Ok(match exact {
            Some(revision) => Some(revision),
            None if options.limit == 0 => None,
            None => Some(self.storage().index().revision()),
        })
    }

    /// Collects `limit` matching objects in chunks, so that selectors run without the lock. The token contains a
    /// complete key.
    fn limited(
        &self,
        resource: &Resource,
        range: &Range<'_>,
        revision: u64,
        options: &ListOptions,
    ) -> Result<ListPage, StorageError> {
        let mut items: Vec<Arc<Version>> = Vec::new();
        let mut start = range.start.map(str::to_owned);
        let all = options.selects_all();
        let chunk = if all { options.limit } else { CHUNK.max(options.limit) };
        loop {
            let range = Range { start: start.as_deref(), ..range.clone() };
            let page = self.storage().index().page(&range, revision, chunk, all)?;
            let mut seen = page.items.into_iter();
            for version in seen.by_ref() {
                start = Some(format!("{}\0", version.key()));
                if options.matches(resource, &version) {
                    items.push(version);
                    if items.len() == options.limit {
                        break;
                    }
                }
            }
            let more = seen.len() > 0 || page.remaining > 0;
            if items.len() == options.limit || !more {
                let continue_token = start.filter(|_| more);
                let remaining = (all && more).then_some(page.remaining);
                return Ok(ListPage { items, revision, continue_token, remaining });
            }
        }
    }

    fn page_gone(&self, error: StorageError, token: Option<&Token>) -> Status {
        match (&error, token) {
            (StorageError::Compacted { .. }, Some(token)) => {
                let mut status = Status::expired(
                    "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.",
                );
                status.continue_token = Some(Token::encode(-1, token.start.clone()).into());
                status
            }
            (StorageError::Compacted { asked, oldest }, None) => Status::expired(format!(
                "The resourceVersion for the provided list is too old. ({asked} < {oldest})"
            )),
            (StorageError::Future { asked, current }, _) => {
                Status::resource_version_too_large(*asked, *current)
            }
            _ => Status::internal(error),
        }
    }
}

impl Token {
    fn encode(revision: i64, start: String) -> String {
        let token = Token { v: TOKEN_VERSION.into(), rv: revision, start };
        // A struct of two strings and a number can always be encoded.
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).unwrap_or_default())
    }

    fn decode(text: &str) -> Result<Self, Status> {
        let bad = |why: &str| Status::bad_request(format!("continue key is not valid: {why}"));
        let bytes = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).map_err(|e| bad(&e.to_string()))?;
        let token: Token = serde_json::from_slice(&bytes).map_err(|e| bad(&e.to_string()))?;
        if token.v != TOKEN_VERSION {
            return Err(bad(&format!("unrecognized encoded version {:?}", token.v)));
        }
        if token.rv == 0 {
            return Err(bad("incorrect encoded start resourceVersion"));
        }
        if token.start.is_empty() {
            return Err(bad("encoded start key empty"));
        }
        let escapes = |segment: &str| matches!(segment.trim_end_matches('\0'), "." | "..");
        if token.start.starts_with('/') || token.start.split('/').any(escapes) {
            return Err(bad(&token.start));
        }
        Ok(token)
    }
}
