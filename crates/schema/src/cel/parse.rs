//! From the text of a rule to its tree, for texts of any shape.
//!
//! The parser and everything that walks a tree call themselves for each level, so that a rule of some kilobytes of brackets
//! could end the process. Upstream limits the size and the depth of an expression; so does this.

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{EntryExpr, Expr};
use kube_cel::cel::parser::Parser;

/// Upstream's limit of an expression, in code points.
const SIZE: usize = 100_000;
/// How deeply a tree may nest, as upstream's parser allows.
const DEPTH: usize = 250;
/// How many signs a rule may have that can make its tree deeper by one.
const SIGNS: usize = 2_000;
/// Up to this many, the parser runs on the stack of the caller.
const FEW_SIGNS: usize = 40;
/// What the parser may take for the deepest text: it has some twenty calls per bracket.
const STACK: usize = 512 << 20;

/// Parses one expression, with optional syntax as Kubernetes has it.
pub(super) fn parse(source: &str) -> Result<IdedExpr, String> {
    let size = source.chars().count();
    if size > SIZE {
        return Err(failure(format!("expression code point size exceeds limit: size: {size}, limit {SIZE}")));
    }
    let signs = source.bytes().filter(|c| !c.is_ascii_alphanumeric() && !c.is_ascii_whitespace()).count();
    if signs <= FEW_SIGNS {
        return parse_here(source);
    }
    if signs > SIGNS {
        return Err(too_deep());
    }
    // Memory of the stack is only taken as far as it is used.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("cel-parser".to_owned()).stack_size(STACK);
        let parsed = thread.spawn_scoped(scope, || parse_here(source)).map(|thread| thread.join());
        match parsed {
            Ok(Ok(parsed)) => parsed,
            Ok(Err(_)) | Err(_) => Err(failure("the parser could not be run".to_owned())),
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
    fn texts_of_any_shape_have_an_answer() {
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
