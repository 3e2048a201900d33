//! Runs compiled rules over an object.
//!
//! The interpreter itself has no budget, so loops are metered: [`meter`] rewrites each loop's condition to first spend
//! from a counter, in proportion to the size of the loop's body. Code outside loops is bounded by the size of the rule
//! and of the object. A rule that exceeds its limit fails, regardless of the value of the rest of the expression.

use std::cell::Cell;

use kube_cel::KubeCelExt;
use kube_cel::cel::common::ast::{CallExpr, EntryExpr, Expr, operators};
use kube_cel::cel::objects::OptionalValue;
use kube_cel::cel::{Context, ExecutionError, FunctionContext, IdedExpr, Value as Cel};
use serde_json::Value;
use std::sync::Arc;

use super::value::bind;
use super::{CompiledRule, RuleTree, limits};
use crate::error::{FieldError, MAX_ERRORS};
use crate::path::Path;
use crate::structural::{Rule, Structural, Type};
use crate::validate::Correlation;

/// Runs all rules for a create (no `old`) or an update.
pub fn evaluate(
    object: &Value,
    old: Option<&Value>,
    schema: &Structural,
    rules: &RuleTree,
) -> Vec<FieldError> {
    if rules.is_empty() {
        return Vec::new();
    }
    FUNCTIONS.with(|functions| {
        let mut run = Run { functions, left: limits::OBJECT, errors: Vec::new() };
        run.node(object, old, schema, rules, true, &Path::root());
        run.errors
    })
}

/// Name of the metering function; rules cannot contain it.
const SPEND: &str = "@spend";

thread_local! {
    /// Registering some hundred functions takes longer than most rules, so they are registered once per thread.
    static FUNCTIONS: Context<'static> = {
        let mut context = Context::default();
        context.register_all();
        context.add_function(SPEND, spend);
        context
    };
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

fn spend(context: &FunctionContext<'_, '_>) -> Result<Cel, ExecutionError> {
    let cost = match context.args.first().map(|a| &a.expr) {
        Some(Expr::Literal(kube_cel::cel::common::ast::LiteralValue::Int(n))) => *n.inner() as u64,
        _ => 1,
    };
    let left = LEFT.get();
    if left < cost {
        LEFT.set(0);
        return Err(context.error("actual cost limit exceeded"));
    }
    LEFT.set(left - cost);
    Ok(Cel::Bool(true))
}

/// Makes every iteration of a loop in `expr` spend in proportion to the size of its body.
pub(super) fn meter(expr: &mut IdedExpr) {
    match &mut expr.expr {
        Expr::Select(s) => meter(&mut s.operand),
        Expr::Call(c) => {
            if let Some(target) = &mut c.target {
                meter(target);
            }
            c.args.iter_mut().for_each(meter);
        }
        Expr::List(l) => l.elements.iter_mut().for_each(meter),
        Expr::Map(m) => {
            for entry in &mut m.entries {
                if let EntryExpr::MapEntry(e) = &mut entry.expr {
                    meter(&mut e.key);
                    meter(&mut e.value);
                }
            }
        }
        Expr::Comprehension(c) => {
            for part in
                [&mut c.iter_range, &mut c.accu_init, &mut c.loop_cond, &mut c.loop_step, &mut c.result]
            {
                meter(part);
            }
            let weight = count(&c.loop_step) + 1;
            let condition = std::mem::take(&mut c.loop_cond);
            let id = condition.id;
            let literal = kube_cel::cel::common::ast::LiteralValue::Int((weight as i64).into());
            let weight = IdedExpr { id, expr: Expr::Literal(literal) };
            let call = |func_name: &str, args| IdedExpr {
                id,
                expr: Expr::Call(CallExpr { func_name: func_name.to_owned(), target: None, args }),
            };
            c.loop_cond = call(operators::LOGICAL_AND, vec![call(SPEND, vec![weight]), condition]);
        }
        Expr::Struct(_) | Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
    }
}

fn count(expr: &IdedExpr) -> u64 {
    match &expr.expr {
        Expr::Select(s) => 1 + count(&s.operand),
        Expr::Call(c) => 1 + c.target.as_deref().map_or(0, count) + c.args.iter().map(count).sum::<u64>(),
        Expr::List(l) => 1 + l.elements.iter().map(count).sum::<u64>(),
        // An inner loop is metered separately.
        _ => 1,
    }
}

struct Run<'f> {
    functions: &'f Context<'static>,
    left: u64,
    errors: Vec<FieldError>,
}

impl Run<'_> {
    fn node(
        &mut self,
        value: &Value,
        old: Option<&Value>,
        schema: &Structural,
        rules: &RuleTree,
        root: bool,
        path: &Path<'_>,
    ) {
        if value.is_null() || self.left == 0 || self.errors.len() > MAX_ERRORS {
            return;
        }
        let old = old.filter(|o| !o.is_null());
        self.rules(value, old, schema, rules, root, path);
        match value {
            Value::Object(object) => {
                for (name, below) in &rules.properties {
                    if let (Some(value), Some(property)) = (object.get(name), schema.properties.get(name)) {
                        let old = old.and_then(|o| o.get(name));
                        self.node(value, old, property, below, false, &path.child(name));
                    }
                }
                if let (Some(below), Some(additional)) = (&rules.additional, schema.additional.schema()) {
                    for (name, value) in object {
                        let old = old.and_then(|o| o.get(name));
                        self.node(value, old, additional, below, false, &path.key(name));
                    }
                }
            }
            Value::Array(list) => {
                if let (Some(below), Some(items)) = (&rules.items, &schema.items) {
                    let correlation = Correlation::new(schema, old);
                    for (i, item) in list.iter().enumerate() {
                        self.node(item, correlation.find(item), items, below, false, &path.index(i));
                    }
                }
            }
            _ => {}
        }
    }

    fn rules(
        &mut self,
        value: &Value,
        old: Option<&Value>,
        schema: &Structural,
        rules: &RuleTree,
        root: bool,
        path: &Path<'_>,
    ) {
        if rules.rules.is_empty() {
            return;
        }
        let unchanged = old == Some(value);
        let wanted = |rule: &CompiledRule| {
            let optional = schema.rules[rule.index].optional_old_self == Some(true);
            match rule.transition {
                true => old.is_some() || optional,
                // Ratcheting: an unchanged value is not validated again.
                false => !unchanged,
            }
        };
        if !rules.rules.iter().any(wanted) {
            return;
        }
        let mut context = self.functions.new_inner_scope();
        context.add_variable_from_value("self", bind(value, schema, root));
        for compiled in rules.rules.iter().filter(|r| wanted(r)) {
            let rule = &schema.rules[compiled.index];
            if compiled.transition {
                let bound = old.map(|o| bind(o, schema, root));
                let variable = if rule.optional_old_self == Some(true) {
                    let optional = bound.map_or_else(OptionalValue::none, OptionalValue::of);
                    Cel::Opaque(Arc::new(optional))
                } else {
                    bound.unwrap_or(Cel::Null)
                };
                context.add_variable_from_value("oldSelf", variable);
            }
            if self.left == 0 {
                self.out_of_budget(schema, path);
                return;
            }
            match self.run(&compiled.program, &context) {
                Ok(Cel::Bool(true)) => {}
                Ok(_) => {
                    let detail = self.detail(compiled, rule, &context);
                    let error = failure(value, schema, rule, compiled, path, detail);
                    self.errors.push(error);
                }
                Err(Failure::Budget) => {
                    let text = format!(
                        "'operation cancelled: actual cost limit exceeded': no further validation rules will be run due \
                         to call cost exceeds limit for rule: {}",
                        named(rule)
                    );
                    self.errors.push(FieldError::invalid(path, type_name(schema), text));
                    self.left = 0;
                    return;
                }
                Err(Failure::Error(error)) => {
                    let text = format!("{} evaluating rule: {}", error_text(&error), named(rule));
                    self.errors.push(FieldError::invalid(path, type_name(schema), text));
                }
            }
        }
    }

    fn run(&mut self, program: &IdedExpr, context: &Context<'_>) -> Result<Cel, Failure> {
        let allowance = limits::CALL.min(self.left);
        LEFT.set(allowance);
        let result = context.resolve(program);
        let left = LEFT.get();
        // Every evaluation has a minimum cost, so that many small ones exceed the limit as well.
        self.left = self.left.saturating_sub(allowance - left + 1);
        if left == 0 && result.is_err() {
            return Err(Failure::Budget);
        }
        // An error inside `a || b` may have been absorbed; the limit applies nevertheless.
        if left == 0 {
            return Err(Failure::Budget);
        }
        result.map_err(Failure::Error)
    }

    /// The message: messageExpression if it yields a usable line, else message, else the rule itself.
    fn detail(&mut self, compiled: &CompiledRule, rule: &Rule, context: &Context<'_>) -> String {
        if let Some(program) = &compiled.message
            && let Ok(Cel::String(text)) = self.run(program, context)
        {
            let text = text.trim();
            if !text.is_empty() && !text.contains('\n') && text.len() <= limits::MESSAGE {
                return text.to_owned();
            }
        }
        match rule.message.trim() {
            "" => format!("failed rule: {}", rule.rule.trim()),
            message => message.to_owned(),
        }
    }

    fn out_of_budget(&mut self, schema: &Structural, path: &Path<'_>) {
        self.errors.push(FieldError::invalid(
            path,
            type_name(schema),
            "validation failed due to running out of cost budget, no further validation rules will be run",
        ));
    }
}

enum Failure {
    Budget,
    Error(ExecutionError),
}

fn failure(
    value: &Value,
    schema: &Structural,
    rule: &Rule,
    compiled: &CompiledRule,
    path: &Path<'_>,
    detail: String,
) -> FieldError {
    let shown = match schema.kind {
        Some(Type::Object | Type::Array) => Value::from(type_name(schema)),
        _ => value.clone(),
    };
    let mut error = match rule.reason.as_deref() {
        Some("FieldValueForbidden") => FieldError::forbidden(path, detail),
        Some("FieldValueRequired") => FieldError::required(path, detail),
        Some("FieldValueDuplicate") => FieldError::duplicate(path, shown),
        _ => FieldError::invalid(path, shown, detail),
    };
    if !compiled.field_path.is_empty() {
        let below = compiled.field_path.join(".");
        error.field = if path.is_root() { below } else { format!("{path}.{below}") };
    }
    error
}

fn named(rule: &Rule) -> &str {
    match rule.message.trim() {
        "" => rule.rule.trim(),
        message => message,
    }
}

fn type_name(schema: &Structural) -> &'static str {
    schema.kind.map_or("", Type::name)
}

fn error_text(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::NoSuchOverload => "no such overload".to_owned(),
        other => other.to_string(),
    }
}
