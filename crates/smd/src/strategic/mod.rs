//! Strategic merge patch: a merge patch that can merge lists, according to the type, and that supports directives
//! (`$patch`, `$retainKeys`, `$setElementOrder/x`, `$deleteFromPrimitiveList/x`).

mod directives;
mod lists;

use serde_json::{Map, Value};
use thiserror::Error;

use crate::schema::{PatchStrategy, Schema, Type, TypeId};
use directives::{DELETE_FROM_LIST, DIRECTIVE};

/// Why a patch is rejected, with the path, for example `spec.containers`.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StrategicError {
    /// A directive is malformed: 400.
    #[error("{0}: {1}")]
    Format(String, String),
    /// The patch cannot be applied: 422.
    #[error("{0}: {1}")]
    Unprocessable(String, String),
}

impl StrategicError {
    fn format(message: impl Into<String>) -> Self {
        Self::Format(String::new(), message.into())
    }

    fn unprocessable(message: impl Into<String>) -> Self {
        Self::Unprocessable(String::new(), message.into())
    }

    fn beneath(mut self, field: &str) -> Self {
        let (Self::Format(path, _) | Self::Unprocessable(path, _)) = &mut self;
        *path = if path.is_empty() { field.to_owned() } else { format!("{field}.{path}") };
        self
    }
}

type Entries = Map<String, Value>;
type Merged<T> = Result<T, StrategicError>;

/// Applies `patch` to `current`, by the patch strategies of its type.
pub fn strategic_merge(ty: Type<'_>, current: &Value, patch: &Value) -> Result<Value, StrategicError> {
    let (Value::Object(current), Value::Object(patch)) = (current, patch) else {
        return Err(StrategicError::format("the patch and the object must be JSON objects"));
    };
    merge_maps(ty.schema, ty.id, current.clone(), patch.clone()).map(Value::Object)
}

/// Directives are applied first, in this order: `$patch` (nothing else is applied then), `$retainKeys`, then
/// `$setElementOrder` together with the lists that it orders. Finally the rest of the patch is merged.
fn merge_maps(schema: &Schema, ty: TypeId, mut current: Entries, mut patch: Entries) -> Merged<Entries> {
    if let Some(directive) = patch.get(DIRECTIVE) {
        return directives::on_map(directive.clone(), patch);
    }
    directives::retain_keys(&mut current, &mut patch)?;
    lists::set_orders(schema, ty, &mut current, &mut patch)?;
    for (key, value) in patch {
        match key.strip_prefix(DELETE_FROM_LIST) {
            Some(rest) => {
                let field = rest.strip_prefix('/').ok_or_else(|| {
                    StrategicError::format(
                        "invalid patch format of primitive list; $deleteFromPrimitiveList/<field>",
                    )
                })?;
                lists::delete_from(&mut current, field, value).map_err(|error| error.beneath(field))?;
            }
            None => {
                let merged = merge_field(schema, ty, current.remove(&key), &key, value);
                current.extend(merged.map_err(|error| error.beneath(&key))?.map(|merged| (key, merged)));
            }
        }
    }
    Ok(current)
}

fn merge_field(
    schema: &Schema,
    ty: TypeId,
    current: Option<Value>,
    key: &str,
    patch: Value,
) -> Merged<Option<Value>> {
    let (strategy, ty) = match schema.atom(ty).map.as_ref().map(|map| map.lookup(key)) {
        Some(field) => (field.patch().clone(), field.ty),
        None => (PatchStrategy::Default, TypeId::DEDUCED),
    };
    match (current, patch) {
        (_, Value::Null) => Ok(None),
        (Some(Value::Object(current)), Value::Object(patch)) => match strategy {
            PatchStrategy::Replace => Ok(Some(Value::Object(patch))),
            _ => merge_maps(schema, ty, current, patch).map(|merged| Some(Value::Object(merged))),
        },
        (Some(Value::Array(current)), Value::Array(patch)) => {
            lists::merge(schema, ty, &strategy, current, patch).map(|merged| Some(Value::Array(merged)))
        }
        (_, patch) => Ok(directives::clean(patch)),
    }
}
