//! CEL rules of `x-kubernetes-validations`.
//!
//! [`compile`] turns the rules of a schema into a [`RuleTree`] with only those parts of the schema that have rules;
//! [`check`] rejects unknown fields and functions and estimates the worst-case cost; [`evaluate`] runs the rules under
//! a budget. The `cel` crate parses and interprets, with the Kubernetes functions of `kube-cel`; type and cost checks,
//! which they lack, are here.

pub mod check;
pub mod compile;
pub mod evaluate;
mod functions;
mod names;
mod parse;
pub mod size;
mod value;

use kube_cel::cel::IdedExpr;

/// Compiled rules of a node and its descendants; branches without rules are absent.
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
    /// Index into the node's `rules`, which have the texts
    pub index: usize,
    /// The rule
    pub program: IdedExpr,
    /// `messageExpression`
    pub message: Option<IdedExpr>,
    /// Uses `oldSelf`
    pub transition: bool,
    /// The field of the error, as path segments below the node
    pub field_path: Vec<String>,
}

/// Upstream's limits, in its cost units.
pub mod limits {
    /// Estimate of one expression, times the number of its node's occurrences
    pub const EXPRESSION: u64 = 10_000_000;
    /// Estimate of all expressions of one CRD
    pub const CRD: u64 = 100_000_000;
    /// One evaluation
    pub const CALL: u64 = 1_000_000;
    /// All evaluations for one object
    pub const OBJECT: u64 = 10_000_000;
    /// Bytes of a message produced by `messageExpression`
    pub const MESSAGE: usize = 5 * 1024;
    /// Bytes of a request, which bound values without a limit in the schema
    pub const REQUEST: u64 = 3 * 1024 * 1024;
}
