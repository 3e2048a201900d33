//! CEL rules of `x-kubernetes-validations`.
//!
//! [`compile`] turns the rules of a schema into a [`RuleTree`] that mirrors only those parts of the schema that have
//! rules; [`check`] refuses unknown fields and functions and estimates the worst cost; [`evaluate`] runs the rules
//! under a budget. Parsing and interpreting is the `cel` crate with the Kubernetes functions of `kube-cel`; what they
//! lack (types, cost) is here.

pub mod check;
pub mod compile;
pub mod evaluate;
mod functions;
mod names;
mod parse;
pub mod size;
mod value;

use kube_cel::cel::IdedExpr;

/// Compiled rules of one node and of those below it; absent branches have no rules.
#[derive(Debug, Default)]
pub struct RuleTree {
    /// Rules of this node
    pub rules: Vec<CompiledRule>,
    /// Below `properties`
    pub properties: Vec<(String, RuleTree)>,
    /// Below `items`
    pub items: Option<Box<RuleTree>>,
    /// Below `additionalProperties`
    pub additional: Option<Box<RuleTree>>,
}

impl RuleTree {
    /// True if nothing here or below has a rule.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
            && self.properties.is_empty()
            && self.items.is_none()
            && self.additional.is_none()
    }
}

/// One rule, ready to run.
#[derive(Debug)]
pub struct CompiledRule {
    /// Index into the node's `rules`, where the texts are
    pub index: usize,
    /// The rule
    pub program: IdedExpr,
    /// `messageExpression`
    pub message: Option<IdedExpr>,
    /// Uses `oldSelf`
    pub transition: bool,
    /// The field to blame, as path segments below the node
    pub field_path: Vec<String>,
}

/// Upstream's limits, in its cost units.
pub mod limits {
    /// Estimate of one expression, times how often its node can occur
    pub const EXPRESSION: u64 = 10_000_000;
    /// Estimate of all expressions of one CRD
    pub const CRD: u64 = 100_000_000;
    /// One evaluation
    pub const CALL: u64 = 1_000_000;
    /// All evaluations for one object
    pub const OBJECT: u64 = 10_000_000;
    /// Bytes of a message made by `messageExpression`
    pub const MESSAGE: usize = 5 * 1024;
    /// Bytes of a request, which bound what is not bounded in the schema
    pub const REQUEST: u64 = 3 * 1024 * 1024;
}
