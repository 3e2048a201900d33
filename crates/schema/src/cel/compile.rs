//! Compiles the rules of a schema into a [`RuleTree`], and reports all errors to the CRD author.

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{EntryExpr, Expr};

use super::check::{Checker, Ty};
use super::parse::parse;
use super::size::max_size;
use super::{CompiledRule, RuleTree, evaluate, limits};
use crate::error::FieldError;
use crate::path::Path;
use crate::structural::{ListType, Rule, Structural};

/// Compiles all rules of `schema`; `path` is the schema's position in the CRD.
pub fn compile(schema: &Structural, path: &Path<'_>) -> (RuleTree, Vec<FieldError>) {
    let mut compiler = Compiler { errors: Vec::new(), total: 0 };
    let position = Position { root: true, cardinality: 1, uncorrelated: None };
    let tree = compiler.node(schema, position, path);
    if compiler.total > limits::CRD {
        compiler.errors.push(FieldError::forbidden(
            path,
            cost_message(
                "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema",
                compiler.total,
                limits::CRD,
            ),
        ));
    }
    (tree, compiler.errors)
}

struct Compiler {
    errors: Vec<FieldError>,
    total: u64,
}

/// The position of a node, as far as rules need it.
#[derive(Clone, Copy)]
struct Position<'a> {
    root: bool,
    /// How many values of this node one object can have
    cardinality: u64,
    /// The list above this node in which old and new items cannot be matched
    uncorrelated: Option<&'a str>,
}

impl Compiler {
    fn node(&mut self, schema: &Structural, position: Position<'_>, path: &Path<'_>) -> RuleTree {
        let mut tree = RuleTree::default();
        let rules_at = path.child("x-kubernetes-validations");
        for (index, rule) in schema.rules.iter().enumerate() {
            let at = rules_at.index(index);
            tree.rules.extend(self.rule(schema, rule, index, position, &at));
        }
        let properties = path.child("properties");
        for (name, property) in &schema.properties {
            let below = self.node(property, Position { root: false, ..position }, &properties.key(name));
            if !below.is_empty() {
                tree.properties.push((name.clone(), below));
            }
        }
        let many = Position {
            root: false,
            cardinality: position.cardinality.saturating_mul(max_size(schema)),
            ..position
        };
        if let Some(additional) = schema.additional.schema() {
            let below = self.node(additional, many, &path.child("additionalProperties"));
            tree.additional = (!below.is_empty()).then(|| Box::new(below));
        }
        if let Some(items) = &schema.items {
            let rendered = path.to_string();
            let uncorrelated = match schema.list_type {
                Some(ListType::Map) => position.uncorrelated,
                _ => position.uncorrelated.or(Some(&rendered)),
            };
            let below = self.node(items, Position { uncorrelated, ..many }, &path.child("items"));
            tree.items = (!below.is_empty()).then(|| Box::new(below));
        }
        tree
    }

    fn rule(
        &mut self,
        schema: &Structural,
        rule: &Rule,
        index: usize,
        position: Position<'_>,
        path: &Path<'_>,
    ) -> Option<CompiledRule> {
        let before = self.errors.len();
        self.texts(rule, path);
        let rule_at = path.child("rule");
        if rule.rule.trim().is_empty() {
            self.errors.push(FieldError::required(&rule_at, "rule is not specified"));
            return None;
        }
        let program = match parse(&rule.rule) {
            Ok(program) => program,
            Err(text) => {
                self.errors.push(FieldError::invalid(&rule_at, rule.rule.as_str(), text));
                return None;
            }
        };
        let transition = mentions(&program, "oldSelf");
        if transition && let Some(list) = position.uncorrelated {
            self.errors.push(FieldError::invalid(
                &rule_at,
                rule.rule.as_str(),
                format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {list}"),
            ));
        }
        if !transition && rule.optional_old_self.is_some() {
            self.errors.push(FieldError::invalid(
                &path.child("optionalOldSelf"),
                rule.optional_old_self.unwrap_or_default(),
                "may not be set if oldSelf is not used in rule",
            ));
        }
        let optional = rule.optional_old_self == Some(true);
        let mut checker = Checker::new(schema, position.root, true, optional);
        let estimate = checker.check(&program);
        for error in checker.errors.drain(..) {
            let text = format!("compilation failed: ERROR: <input>:1:1: {error}");
            self.errors.push(FieldError::invalid(&rule_at, rule.rule.as_str(), text));
        }
        if !matches!(estimate.ty, Ty::Bool | Ty::Dyn) {
            self.errors.push(FieldError::invalid(&rule_at, rule.rule.as_str(), "must evaluate to a bool"));
        }
        self.cost("estimated rule cost", estimate.cost, position, &rule_at);
        let message = self.message(&mut checker, rule, position, path);
        let field_path = self.field_path(schema, rule, path);
        if self.errors.len() != before {
            return None;
        }
        let (mut program, mut message) = (program, message);
        evaluate::meter(&mut program);
        message.iter_mut().for_each(evaluate::meter);
        Some(CompiledRule { index, program, message, transition, field_path })
    }

    fn texts(&mut self, rule: &Rule, path: &Path<'_>) {
        let message_at = path.child("message");
        if !rule.message.is_empty() && rule.message.trim().is_empty() {
            let text = "message must be non-empty if specified";
            self.errors.push(FieldError::invalid(&message_at, rule.message.as_str(), text));
        } else if rule.message.trim().contains('\n') {
            let text = "message must not contain line breaks";
            self.errors.push(FieldError::invalid(&message_at, rule.message.as_str(), text));
        } else if rule.message.is_empty() && rule.rule.trim().contains('\n') {
            let text = "message must be specified if rule contains line breaks";
            self.errors.push(FieldError::required(&message_at, text));
        }
        let reasons =
            ["FieldValueRequired", "FieldValueInvalid", "FieldValueForbidden", "FieldValueDuplicate"];
        if let Some(reason) = &rule.reason
            && !reasons.contains(&reason.as_str())
        {
            self.errors.push(FieldError::not_supported(&path.child("reason"), reason.as_str(), &reasons));
        }
    }

    fn message(
        &mut self,
        checker: &mut Checker<'_>,
        rule: &Rule,
        position: Position<'_>,
        path: &Path<'_>,
    ) -> Option<IdedExpr> {
        let source = rule.message_expression.trim();
        if source.is_empty() {
            return None;
        }
        let at = path.child("messageExpression");
        let program = match parse(source) {
            Ok(program) => program,
            Err(text) => {
                self.errors.push(FieldError::invalid(&at, source, text));
                return None;
            }
        };
        let estimate = checker.check(&program);
        for error in checker.errors.drain(..) {
            let text = format!("messageExpression compilation failed: ERROR: <input>:1:1: {error}");
            self.errors.push(FieldError::invalid(&at, source, text));
        }
        if !matches!(estimate.ty, Ty::Text | Ty::Dyn) {
            self.errors.push(FieldError::invalid(&at, source, "messageExpression must evaluate to a string"));
        }
        self.cost("estimated messageExpression cost", estimate.cost, position, &at);
        Some(program)
    }

    fn cost(&mut self, what: &str, cost: u64, position: Position<'_>, path: &Path<'_>) {
        let cost = cost.saturating_mul(position.cardinality);
        self.total = self.total.saturating_add(cost);
        if cost > limits::EXPRESSION {
            self.errors.push(FieldError::forbidden(path, cost_message(what, cost, limits::EXPRESSION)));
        }
    }

    /// Resolves `.spec.list['a.b']`: each segment must be declared below the node.
    fn field_path(&mut self, schema: &Structural, rule: &Rule, path: &Path<'_>) -> Vec<String> {
        let source = rule.field_path.as_str();
        if source.is_empty() {
            return Vec::new();
        }
        let at = path.child("fieldPath");
        let Some(segments) = split_field_path(source) else {
            let text = "fieldPath must be a valid path: expected [ or . at the start of each segment";
            self.errors.push(FieldError::invalid(&at, source, text));
            return Vec::new();
        };
        let mut node = schema;
        for segment in &segments {
            match node.property(segment) {
                Some(next) => node = next,
                None => {
                    let text =
                        format!("fieldPath must be a valid path: does not refer to a valid field: {segment}");
                    self.errors.push(FieldError::invalid(&at, source, text));
                    break;
                }
            }
        }
        segments
    }
}

fn split_field_path(source: &str) -> Option<Vec<String>> {
    let mut segments = Vec::new();
    let mut rest = source;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix("['") {
            let end = after.find("']")?;
            segments.push(after[..end].to_owned());
            rest = &after[end + 2..];
        } else {
            let after = rest.strip_prefix('.')?;
            let end = after.find(['.', '[']).unwrap_or(after.len());
            if end == 0 {
                return None;
            }
            segments.push(after[..end].to_owned());
            rest = &after[end..];
        }
    }
    Some(segments)
}

fn cost_message(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and \
         maxLength where arrays, maps, and strings are declared)"
    )
}

/// Whether variable `name` occurs anywhere in `expr`.
fn mentions(expr: &IdedExpr, name: &str) -> bool {
    let m = |e: &IdedExpr| mentions(e, name);
    match &expr.expr {
        Expr::Ident(ident) => ident == name,
        Expr::Select(s) => m(&s.operand),
        Expr::Call(c) => c.target.as_deref().is_some_and(m) || c.args.iter().any(m),
        Expr::List(l) => l.elements.iter().any(m),
        Expr::Map(map) => map.entries.iter().any(|e| match &e.expr {
            EntryExpr::MapEntry(e) => m(&e.key) || m(&e.value),
            EntryExpr::StructField(f) => m(&f.value),
        }),
        Expr::Struct(s) => s.entries.iter().any(|e| match &e.expr {
            EntryExpr::MapEntry(e) => m(&e.key) || m(&e.value),
            EntryExpr::StructField(f) => m(&f.value),
        }),
        Expr::Comprehension(c) => {
            [&c.iter_range, &c.accu_init, &c.loop_cond, &c.loop_step, &c.result].into_iter().any(m)
        }
        Expr::Literal(_) | Expr::Unspecified => false,
    }
}
