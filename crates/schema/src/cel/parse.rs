//! Parses the text of a rule, safely for any text.
//!
//! The parser and all tree walks are recursive, so that a rule with some kilobytes of brackets could overflow the stack
//! and end the process. As upstream does, this limits the size and the depth of an expression.

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{EntryExpr, Expr};
use kube_cel::cel::parser::Parser;

/// Upstream's limit of the length of an expression, in code points.
const SIZE: usize = 100_000;
/// Maximum depth of a tree, as in upstream's parser.
const DEPTH: usize = 250;
/// Maximum number of characters in a rule that can deepen its tree.
const NESTING_CHARS: usize = 2_000;
/// Up to this many, the parser runs on the caller's stack.
const SHALLOW_NESTING_CHARS: usize = 40;
/// Stack size for the deepest text: the parser makes some twenty calls per bracket.
const STACK: usize = 512 << 20;

/// Parses one expression, with optional syntax as in Kubernetes.
pub(super) fn parse(source: &str) -> Result<IdedExpr, String> {
    let size = source.chars().count();
    if size > SIZE {
        return Err(failure(format!("expression code point size exceeds limit: size: {size}, limit {SIZE}")));
    }
    let signs = source.bytes().filter(|c| !c.is_ascii_alphanumeric() && !c.is_ascii_whitespace()).count();
    if signs <= SHALLOW_NESTING_CHARS {
        return parse_here(source);
    }
    if signs > NESTING_CHARS {
        return Err(too_deep());
    }
    // Only the pages of the stack that are used take memory.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("cel-parser".to_owned()).stack_size(STACK);
        let parsed = thread.spawn_scoped(scope, || parse_here(source)).map(|thread| thread.join());
        match parsed {
            Ok(Ok(parsed)) => parsed,
            Ok(Err(_)) | Err(_) => Err(failure("failed to run the parser".to_owned())),
        }
    })
}

fn parse_here(source: &str) -> Result<IdedExpr, String> {
    let parsed = Parser::default()
        .enable_optional_syntax(true)
        .parse(source)
        .map_err(|errors| failure(format!("Syntax error: {errors}")))?;
    if is_deeper_than(&parsed, DEPTH) { Err(too_deep()) } else { Ok(parsed) }
}

fn failure(why: String) -> String {
    format!("compilation failed: ERROR: <input>: {why}")
}

fn too_deep() -> String {
    failure(format!("expression recursion limit exceeded: {DEPTH}"))
}

fn is_deeper_than(expr: &IdedExpr, depth: usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else { return true };
    let deep = |expr: &IdedExpr| is_deeper_than(expr, depth);
    match &expr.expr {
        Expr::Select(select) => deep(&select.operand),
        Expr::Call(call) => call.target.as_deref().is_some_and(deep) || call.args.iter().any(deep),
        Expr::List(list) => list.elements.iter().any(deep),
        Expr::Map(map) => map.entries.iter().any(|entry| entry_is(&entry.expr, deep)),
        Expr::Struct(message) => message.entries.iter().any(|entry| entry_is(&entry.expr, deep)),
        Expr::Comprehension(c) => {
            [&c.iter_range, &c.accu_init, &c.loop_cond, &c.loop_step, &c.result].into_iter().any(deep)
        }
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => false,
    }
}

fn entry_is(entry: &EntryExpr, deep: impl Fn(&IdedExpr) -> bool) -> bool {
    match entry {
        EntryExpr::MapEntry(entry) => deep(&entry.key) || deep(&entry.value),
        EntryExpr::StructField(field) => deep(&field.value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_is_parsed_or_rejected() {
        for (open, close) in
            [("(", ")"), ("[", "]"), ("!", ""), ("-", ""), ("1+", ""), ("true?1:", ""), ("a.", "")]
        {
            for times in [10, 50, 300, 1_000, 20_000] {
                let text = format!("{}1{}", open.repeat(times), close.repeat(times));
                let parsed = parse(&text.replace("a.1", "a.b"));
                assert!(times > 50 || parsed.is_ok() || close.is_empty(), "{open} {times}: {parsed:?}");
                assert!(times < 20_000 || parsed.is_err(), "{open} {times}");
            }
        }
        let all = vec!["self.a == 1"; 60].join(" && ");
        assert!(parse(&all).is_ok());
    }
}
