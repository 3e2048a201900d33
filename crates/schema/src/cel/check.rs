//! Type checks and cost estimates of rules at compile time.
//!
//! The checker follows the schema through selections, loops and functions. An expression whose type is unknown is
//! [`Ty::Dyn`] and passes; otherwise unknown fields, variables and functions are errors. Costs are upper bounds in
//! upstream's units: an unbounded list in a loop therefore exceeds the limit, and the error suggests maxItems.

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue, SelectExpr, operators};

use super::functions::{FUNCTIONS, Result, Work};
use super::limits::REQUEST;
use super::names::escape;
use super::size::max_size;
use crate::structural::{Structural, Type};
use crate::validate::formats::Format;

/// The estimated type, size and cost of an expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Its type
    pub ty: Ty,
    /// Largest number of items or characters
    pub size: u64,
    /// Largest cost of evaluating it
    pub cost: u64,
}

/// Types of CEL, as far as rules need them.
#[derive(Clone, Debug, PartialEq)]
pub enum Ty {
    /// Not known at compile time
    Dyn,
    /// bool
    Bool,
    /// int, uint or double
    Number,
    /// string or bytes
    Text,
    /// timestamp or duration
    Time,
    /// null
    Null,
    /// A list and its items
    List(Box<Estimate>),
    /// A map and its values
    Map(Box<Estimate>),
    /// A declared object: its index in the checker's table, and whether it is a root or embedded resource, which also
    /// has some metadata fields
    Object(usize, bool),
}

/// Checks expressions over one node of the schema.
pub struct Checker<'s> {
    nodes: Vec<&'s Structural>,
    scope: Vec<(String, Estimate)>,
    /// Errors in the wording of the CEL compiler
    pub errors: Vec<String>,
}

impl<'s> Checker<'s> {
    /// `self` (and `oldSelf`, if the rule may use it) are values of `schema`.
    pub fn new(schema: &'s Structural, resource: bool, old_self: bool, optional: bool) -> Self {
        let mut checker = Checker { nodes: Vec::new(), scope: Vec::new(), errors: Vec::new() };
        let own = checker.of(schema, resource);
        if old_self {
            let old = if optional { Estimate { ty: Ty::Dyn, ..own.clone() } } else { own.clone() };
            checker.scope.push(("oldSelf".to_owned(), old));
        }
        checker.scope.push(("self".to_owned(), own));
        checker
    }

    /// Returns type, size and cost of `expr`; collects errors.
    pub fn check(&mut self, expr: &IdedExpr) -> Estimate {
        match &expr.expr {
            Expr::Literal(literal) => self.literal(literal),
            Expr::Ident(name) => self.ident(name),
            Expr::Select(select) => self.select(select),
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::List(list) => {
                let items: Vec<_> = list.elements.iter().map(|e| self.check(e)).collect();
                let cost = items.iter().fold(10, |sum: u64, e| sum.saturating_add(e.cost));
                let size = items.len() as u64;
                let item = items.into_iter().next().unwrap_or(UNKNOWN_SCALAR);
                Estimate { ty: Ty::List(Box::new(Estimate { cost: 0, ..item })), size, cost }
            }
            Expr::Map(map) => {
                let mut cost = 30u64;
                for entry in &map.entries {
                    if let kube_cel::cel::common::ast::EntryExpr::MapEntry(e) = &entry.expr {
                        cost = cost
                            .saturating_add(self.check(&e.key).cost)
                            .saturating_add(self.check(&e.value).cost);
                    }
                }
                Estimate { ty: Ty::Dyn, size: map.entries.len() as u64, cost }
            }
            Expr::Struct(s) => {
                self.errors.push(format!("undeclared reference to '{}' (in container '')", s.type_name));
                UNKNOWN
            }
            Expr::Unspecified => UNKNOWN,
        }
    }

    fn literal(&self, literal: &LiteralValue) -> Estimate {
        let (ty, size) = match literal {
            LiteralValue::Boolean(_) => (Ty::Bool, 1),
            LiteralValue::String(s) => (Ty::Text, s.inner().chars().count() as u64),
            LiteralValue::Bytes(b) => (Ty::Text, b.inner().len() as u64),
            LiteralValue::Double(_) | LiteralValue::Int(_) | LiteralValue::UInt(_) => (Ty::Number, 1),
            LiteralValue::Null => (Ty::Null, 1),
        };
        Estimate { ty, size, cost: 0 }
    }

    fn ident(&mut self, name: &str) -> Estimate {
        if let Some((_, found)) = self.scope.iter().rev().find(|(n, _)| n == name) {
            return Estimate { cost: 1, ..found.clone() };
        }
        const TYPES: &[&str] = &[
            "bool",
            "int",
            "uint",
            "double",
            "string",
            "bytes",
            "list",
            "map",
            "null_type",
            "type",
            "optional",
            "math",
            "sets",
            "ip",
            "cidr",
            "format",
            "base64",
            "strings",
            "semver",
            "quantity",
        ];
        if !TYPES.contains(&name) {
            self.errors.push(format!("undeclared reference to '{name}' (in container '')"));
        }
        UNKNOWN
    }

    fn select(&mut self, select: &SelectExpr) -> Estimate {
        let operand = self.check(&select.operand);
        let cost = operand.cost.saturating_add(1);
        let found = match &operand.ty {
            Ty::Object(node, resource) => self.field(*node, *resource, &select.field),
            Ty::Map(value) => (**value).clone(),
            Ty::Dyn => UNKNOWN,
            _ => {
                self.errors.push(format!("type does not support field selection ('{}')", select.field));
                UNKNOWN
            }
        };
        if select.test {
            return Estimate { ty: Ty::Bool, size: 1, cost };
        }
        Estimate { cost, ..found }
    }

    fn field(&mut self, node: usize, resource: bool, name: &str) -> Estimate {
        let schema = self.nodes[node];
        if resource {
            match name {
                "metadata" => {
                    let text = Estimate { ty: Ty::Text, size: 253, cost: 0 };
                    return Estimate { ty: Ty::Map(Box::new(text)), size: 2, cost: 0 };
                }
                "apiVersion" | "kind" => return Estimate { ty: Ty::Text, size: 317, cost: 0 },
                _ => {}
            }
        }
        let property = schema.properties.iter().find(|(n, _)| escape(n) == name);
        match property {
            Some((_, property)) => self.of(property, false),
            None => {
                self.errors.push(format!("undefined field '{name}'"));
                UNKNOWN
            }
        }
    }

    fn of(&mut self, schema: &'s Structural, resource: bool) -> Estimate {
        let format = schema.value.as_ref().and_then(|v| v.format);
        let ty = match schema.kind {
            _ if schema.int_or_string => Ty::Dyn,
            None => Ty::Dyn,
            Some(Type::Boolean) => Ty::Bool,
            Some(Type::Integer | Type::Number) => Ty::Number,
            Some(Type::String) => match format {
                Some(Format::DateTime | Format::Date | Format::Duration) => Ty::Time,
                _ => Ty::Text,
            },
            Some(Type::Array) => {
                let item = schema.items.as_deref().map_or(UNKNOWN, |items| self.of(items, false));
                Ty::List(Box::new(item))
            }
            Some(Type::Object) => match schema.additional.schema() {
                Some(value) => Ty::Map(Box::new(self.of(value, false))),
                None => {
                    self.nodes.push(schema);
                    let resource = resource || schema.embedded_resource;
                    Ty::Object(self.nodes.len() - 1, resource)
                }
            },
        };
        // Declared objects are compared field by field; only maps, lists and strings have a variable size.
        let size = match ty {
            Ty::Object(..) => schema.properties.len() as u64,
            _ => max_size(schema),
        };
        Estimate { ty, size, cost: 0 }
    }

    fn comprehension(&mut self, c: &ComprehensionExpr) -> Estimate {
        let range = self.check(&c.iter_range);
        let init = self.check(&c.accu_init);
        let text = Estimate { ty: Ty::Text, size: 253, cost: 0 };
        let item = match &range.ty {
            Ty::List(item) => (**item).clone(),
            Ty::Map(_) | Ty::Object(..) => text,
            _ => UNKNOWN,
        };
        let depth = self.scope.len();
        // The accumulator can grow to one result for each item.
        let accumulator = Estimate {
            ty: if init.ty == Ty::Bool { Ty::Bool } else { Ty::Dyn },
            size: init.size.max(range.size),
            cost: 0,
        };
        match (&c.iter_var2, &range.ty) {
            (Some(second), _) => {
                let value = match &range.ty {
                    Ty::Map(value) => (**value).clone(),
                    Ty::List(item) => (**item).clone(),
                    _ => UNKNOWN,
                };
                self.scope.push((c.iter_var.clone(), UNKNOWN_SCALAR));
                self.scope.push((second.clone(), value));
            }
            (None, _) => self.scope.push((c.iter_var.clone(), item.clone())),
        }
        self.scope.push((c.accu_var.clone(), accumulator.clone()));
        let condition = self.check(&c.loop_cond);
        let step = self.check(&c.loop_step);
        let result = self.check(&c.result);
        self.scope.truncate(depth);
        let each = condition.cost.saturating_add(step.cost).saturating_add(1);
        let cost = range.cost.saturating_add(init.cost).saturating_add(range.size.saturating_mul(each));
        // `filter` keeps the items; `map` creates new ones of unknown type.
        let ty = match (&init.ty, &result.ty) {
            (Ty::Bool, _) => Ty::Bool,
            (Ty::List(_), _) => match &step.ty {
                Ty::List(new) if !matches!(new.ty, Ty::Dyn) => Ty::List(new.clone()),
                _ => Ty::List(Box::new(UNKNOWN)),
            },
            (_, other) => other.clone(),
        };
        Estimate { ty, size: accumulator.size, cost: cost.saturating_add(result.cost) }
    }

    fn call(&mut self, call: &CallExpr) -> Estimate {
        let target = call.target.as_deref().map(|t| self.target(t));
        let args: Vec<_> = call.args.iter().map(|a| self.check(a)).collect();
        let inputs: Vec<&Estimate> = target.iter().flatten().chain(args.iter()).collect();
        let base = inputs.iter().fold(1u64, |sum, e| sum.saturating_add(e.cost));
        let sizes = |scale: f64| (inputs.iter().map(|e| e.size as f64).sum::<f64>() * scale).ceil() as u64;
        let first = inputs.first().map_or(1, |e| e.size);
        let second = inputs.get(1).map_or(1, |e| e.size);
        let (ty, size, extra) = match call.func_name.as_str() {
            operators::LOGICAL_AND
            | operators::LOGICAL_OR
            | operators::LOGICAL_NOT
            | operators::NOT_STRICTLY_FALSE => {
                for input in &inputs {
                    if !matches!(input.ty, Ty::Bool | Ty::Dyn) {
                        self.errors.push(format!("found no matching overload for '{}'", call.func_name));
                        break;
                    }
                }
                (Ty::Bool, 1, 0)
            }
            operators::EQUALS
            | operators::NOT_EQUALS
            | operators::LESS
            | operators::LESS_EQUALS
            | operators::GREATER
            | operators::GREATER_EQUALS => {
                self.comparable(&call.func_name, &args);
                let smaller = first.min(second);
                (Ty::Bool, 1, (smaller as f64 * 0.1).ceil() as u64)
            }
            operators::IN => match args.get(1).map(|a| &a.ty) {
                Some(Ty::List(item)) => (Ty::Bool, 1, second.saturating_mul(1 + item.size.min(first) / 10)),
                _ => (Ty::Bool, 1, 1),
            },
            operators::ADD => match args.first().map(|a| a.ty.clone()) {
                Some(Ty::Text) => (Ty::Text, first.saturating_add(second), sizes(0.1)),
                Some(Ty::List(item)) => {
                    let item = match (&item.ty, args.get(1).map(|a| &a.ty)) {
                        (Ty::Dyn, Some(Ty::List(other))) => other.clone(),
                        _ => item,
                    };
                    (Ty::List(item), first.saturating_add(second), 1)
                }
                Some(Ty::Number) => (Ty::Number, 1, 0),
                // An accumulator: it takes the item type of the other side.
                _ => match args.get(1).map(|a| a.ty.clone()) {
                    Some(Ty::List(item)) => (Ty::List(item), first.saturating_add(second), 1),
                    _ => (Ty::Dyn, first.saturating_add(second), 1),
                },
            },
            operators::SUBSTRACT
            | operators::MULTIPLY
            | operators::DIVIDE
            | operators::MODULO
            | operators::NEGATE => match args.first().map(|a| &a.ty) {
                Some(Ty::Number) if args.len() == 1 || args.get(1).is_some_and(|a| a.ty == Ty::Number) => {
                    (Ty::Number, 1, 0)
                }
                _ => (Ty::Dyn, 1, 0),
            },
            operators::CONDITIONAL => {
                let (a, b) =
                    (args.get(1).cloned().unwrap_or(UNKNOWN), args.get(2).cloned().unwrap_or(UNKNOWN));
                let ty = if a.ty == b.ty { a.ty } else { Ty::Dyn };
                (ty, a.size.max(b.size), 0)
            }
            operators::INDEX => match args.first().map(|a| &a.ty) {
                Some(Ty::List(item)) | Some(Ty::Map(item)) => (item.ty.clone(), item.size, 0),
                _ => (Ty::Dyn, first, 0),
            },
            operators::OPT_INDEX | operators::OPT_SELECT => (Ty::Dyn, first, 0),
            name => match FUNCTIONS.iter().find(|f| f.0 == name) {
                Some((_, result, work)) => {
                    let ty = match result {
                        Result::Bool => Ty::Bool,
                        Result::Number => Ty::Number,
                        Result::Text => Ty::Text,
                        Result::Texts => Ty::List(Box::new(Estimate { ty: Ty::Text, size: first, cost: 0 })),
                        Result::Any => Ty::Dyn,
                    };
                    let extra = match work {
                        Work::Constant => 0,
                        Work::Linear => sizes(0.1),
                        Work::Product => (first as f64 * 0.1 * (second as f64 * 0.25).max(1.0)).ceil() as u64,
                        Work::Items => first.saturating_mul(second.max(1)),
                    };
                    (ty, first.max(1), extra)
                }
                None => {
                    self.errors.push(format!("undeclared reference to '{name}' (in container '')"));
                    (Ty::Dyn, 1, 0)
                }
            },
        };
        Estimate { ty, size, cost: base.saturating_add(extra) }
    }

    /// The target of `math.greatest(…)` and similar calls is a namespace, not a variable.
    fn target(&mut self, target: &IdedExpr) -> Option<Estimate> {
        if let Expr::Ident(name) = &target.expr {
            let namespaces = ["math", "sets", "optional", "base64", "strings", "cidr", "ip", "format"];
            let local = self.scope.iter().any(|(n, _)| n == name);
            if !local && namespaces.contains(&name.as_str()) {
                return None;
            }
        }
        Some(self.check(target))
    }

    fn comparable(&mut self, operator: &str, args: &[Estimate]) {
        let [a, b] = args else { return };
        let simple = |t: &Ty| matches!(t, Ty::Bool | Ty::Number | Ty::Text | Ty::Time);
        if simple(&a.ty) && simple(&b.ty) && a.ty != b.ty {
            self.errors.push(format!("found no matching overload for '{operator}'"));
        }
    }
}

const UNKNOWN: Estimate = Estimate { ty: Ty::Dyn, size: REQUEST / 4, cost: 0 };
const UNKNOWN_SCALAR: Estimate = Estimate { ty: Ty::Dyn, size: 1, cost: 0 };
