//! A schema, compiled once and used for every write.

use serde_json::Value;

use crate::cel::{RuleTree, compile, evaluate};
use crate::default::TooManyDefaults;
use crate::error::{ErrorKind, FieldError, MAX_ERRORS};
use crate::path::Path;
use crate::structural::{Structural, check, parse};
use crate::{default, prune, validate};

/// The compiled `openAPIV3Schema` of one version of a custom resource.
#[derive(Debug)]
pub struct Schema {
    root: Structural,
    rules: RuleTree,
    has_defaults: bool,
}

impl Schema {
    /// Parses, checks and compiles. `path` is the schema's position in the CRD, for the errors.
    pub fn compile(open_api_v3_schema: &Value, path: &Path<'_>) -> Result<Schema, Vec<FieldError>> {
        let mut errors = Vec::new();
        let root = parse::parse(open_api_v3_schema, path, &mut errors);
        errors.extend(check::check(&root, path));
        let (rules, rule_errors) = compile::compile(&root, path);
        errors.extend(rule_errors);
        if errors.is_empty() {
            let has_defaults = root.has_defaults();
            Ok(Schema { root, rules, has_defaults })
        } else {
            Err(errors)
        }
    }

    /// Compiles leniently: for CRDs that are already stored, whose rules an earlier version accepted. Returns the
    /// schema without the parts that could not be compiled, and the errors.
    pub fn compile_stored(open_api_v3_schema: &Value) -> (Schema, Vec<FieldError>) {
        let path = Path::root();
        let mut errors = Vec::new();
        let root = parse::parse(open_api_v3_schema, &path, &mut errors);
        errors.extend(check::check(&root, &path));
        let (rules, rule_errors) = compile::compile(&root, &path);
        errors.extend(rule_errors);
        let has_defaults = root.has_defaults();
        (Schema { root, rules, has_defaults }, errors)
    }

    /// The parsed tree, for other views of the schema (merge types, OpenAPI).
    pub fn structural(&self) -> &Structural {
        &self.root
    }

    /// Drops unknown fields and returns their paths; see [`prune::prune`].
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        prune::prune(object, &self.root)
    }

    /// Fills in defaults and drops meaningless nulls; see [`default::default`].
    pub fn default(&self, object: &mut Value) -> Result<(), TooManyDefaults> {
        if self.has_defaults {
            return default::default(object, &self.root);
        }
        default::drop_nulls(object, &self.root);
        Ok(())
    }

    /// True if the schema declares a default; otherwise stored objects need not be defaulted when read.
    pub fn has_defaults(&self) -> bool {
        self.has_defaults
    }

    /// Returns all errors of `object`; on update, only those that the update introduces.
    ///
    /// Rules run only on otherwise valid objects, because they rely on types and limits.
    pub fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = validate::validate(object, old, &self.root);
        if self.rules.is_empty() {
            return errors;
        }
        let blocks = |e: &FieldError| {
            matches!(
                e.kind,
                ErrorKind::TypeInvalid
                    | ErrorKind::Required
                    | ErrorKind::TooLong
                    | ErrorKind::TooMany
                    | ErrorKind::NotSupported
                    | ErrorKind::Duplicate
            )
        };
        if errors.iter().any(blocks) {
            errors.push(FieldError {
                kind: ErrorKind::Invalid,
                field: "<nil>".to_owned(),
                bad_value: Some(Value::Null),
                detail: "some validation rules were not checked because the object was invalid; correct the existing \
                         errors to complete validation"
                    .to_owned(),
            });
            return errors;
        }
        errors.extend(evaluate::evaluate(object, old, &self.root, &self.rules));
        if errors.len() > MAX_ERRORS {
            errors.truncate(MAX_ERRORS);
            errors.push(FieldError::more());
        }
        errors
    }
}
