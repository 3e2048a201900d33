//! The options of drivers: their definition, and how their values are read from defaults, the environment and the command
//! line. Pure functions.

use std::collections::BTreeMap;

/// One option of a driver, named `<driver>-<flag>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// Name without the leading dashes.
    pub name: String,
    /// Help text, one sentence.
    pub usage: String,
    /// Environment variable that sets it; empty if none.
    pub env: String,
    /// Type and default.
    pub value: FlagValue,
}

/// The value of an option. The variant is the option's type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlagValue {
    /// A string.
    String(String),
    /// A list; the option can be repeated.
    StringSlice(Vec<String>),
    /// A number.
    Int(i64),
    /// A boolean that is false by default.
    Bool(bool),
}

impl Flag {
    /// A string option.
    pub fn string(name: &str, default: &str, env: &str, usage: &str) -> Flag {
        Flag::new(name, FlagValue::String(default.to_owned()), env, usage)
    }

    /// An option that can be repeated.
    pub fn strings(name: &str, env: &str, usage: &str) -> Flag {
        Flag::new(name, FlagValue::StringSlice(Vec::new()), env, usage)
    }

    /// An integer option.
    pub fn int(name: &str, default: i64, env: &str, usage: &str) -> Flag {
        Flag::new(name, FlagValue::Int(default), env, usage)
    }

    /// A boolean option.
    pub fn bool(name: &str, env: &str, usage: &str) -> Flag {
        Flag::new(name, FlagValue::Bool(false), env, usage)
    }

    fn new(name: &str, value: FlagValue, env: &str, usage: &str) -> Flag {
        Flag { name: name.to_owned(), usage: usage.to_owned(), env: env.to_owned(), value }
    }
}

/// The values of all options in one call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Values(BTreeMap<String, FlagValue>);

impl Values {
    /// A string; empty if there is no such option.
    pub fn string(&self, name: &str) -> &str {
        match self.0.get(name) {
            Some(FlagValue::String(value)) => value,
            _ => "",
        }
    }

    /// A list; empty if there is no such option.
    pub fn strings(&self, name: &str) -> &[String] {
        match self.0.get(name) {
            Some(FlagValue::StringSlice(values)) => values,
            _ => &[],
        }
    }

    /// An integer; zero if there is no such option.
    pub fn int(&self, name: &str) -> i64 {
        match self.0.get(name) {
            Some(FlagValue::Int(value)) => *value,
            _ => 0,
        }
    }

    /// A boolean; false if there is no such option.
    pub fn bool(&self, name: &str) -> bool {
        matches!(self.0.get(name), Some(FlagValue::Bool(true)))
    }

    /// Sets one value, for tests and other programs.
    pub fn set(&mut self, name: &str, value: FlagValue) {
        self.0.insert(name.to_owned(), value);
    }
}

/// The help text of the options, one per line.
pub fn help(flags: &[Flag]) -> String {
    let placeholder = |flag: &Flag| match flag.value {
        FlagValue::Bool(_) => "",
        FlagValue::Int(_) => " N",
        FlagValue::String(_) | FlagValue::StringSlice(_) => " VALUE",
    };
    let names: Vec<String> = flags.iter().map(|f| format!("--{}{}", f.name, placeholder(f))).collect();
    let widest = names.iter().map(String::len).max().unwrap_or(0);
    let line = |(name, flag): (&String, &Flag)| {
        let env = if flag.env.is_empty() { String::new() } else { format!(" [env: {}]", flag.env) };
        format!("  {name:<widest$}  {}{env}\n", flag.usage)
    };
    names.iter().zip(flags).map(line).collect()
}

/// Parses a command line. Returns the values of `flags`, taken from the command line, the environment or the default (in
/// that order), and the remaining arguments.
pub fn parse(
    flags: &[Flag],
    args: &[String],
    env: impl Fn(&str) -> Option<String>,
) -> Result<(Values, Vec<String>), String> {
    let mut values = Values::default();
    for flag in flags {
        let set = Some(&flag.env).filter(|name| !name.is_empty()).and_then(|name| env(name));
        let value = match set.filter(|text| !text.is_empty()) {
            Some(text) => read(flag, &text).map_err(|error| format!("{}: {error}", flag.env))?,
            None => flag.value.clone(),
        };
        values.0.insert(flag.name.clone(), value);
    }
    let mut rest = Vec::new();
    let mut given: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let bare = word.strip_prefix("--").unwrap_or("");
        let (name, inline) = match bare.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (bare, None),
        };
        let Some(flag) = flags.iter().find(|flag| flag.name == name) else {
            rest.push(word.clone());
            continue;
        };
        let text = match (&flag.value, inline) {
            (_, Some(text)) => text,
            (FlagValue::Bool(_), None) => "true".to_owned(),
            (_, None) => words.next().cloned().ok_or_else(|| format!("--{name} requires a value"))?,
        };
        given.entry(&flag.name).or_default().push(text);
    }
    for flag in flags {
        let Some(texts) = given.remove(flag.name.as_str()) else { continue };
        let value = match (&flag.value, texts.last()) {
            (FlagValue::StringSlice(_), _) => FlagValue::StringSlice(texts),
            (_, Some(text)) => read(flag, text).map_err(|error| format!("--{}: {error}", flag.name))?,
            (_, None) => continue,
        };
        values.0.insert(flag.name.clone(), value);
    }
    Ok((values, rest))
}

fn read(flag: &Flag, text: &str) -> Result<FlagValue, String> {
    Ok(match flag.value {
        FlagValue::String(_) => FlagValue::String(text.to_owned()),
        FlagValue::StringSlice(_) => {
            FlagValue::StringSlice(text.split(',').map(|part| part.trim().to_owned()).collect())
        }
        FlagValue::Int(_) => FlagValue::Int(text.parse().map_err(|_| format!("{text:?} is not a number"))?),
        FlagValue::Bool(_) => match text {
            "1" | "t" | "true" | "TRUE" | "True" => FlagValue::Bool(true),
            "0" | "f" | "false" | "FALSE" | "False" => FlagValue::Bool(false),
            _ => return Err(format!("{text:?} is neither true nor false")),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_aligned_and_names_the_environment_variable() {
        let flags = [Flag::int("local-cpus", 0, "LOCAL_CPUS", "How many"), Flag::bool("x", "", "Whether")];
        assert_eq!(help(&flags), "  --local-cpus N  How many [env: LOCAL_CPUS]\n  --x             Whether\n");
    }

    #[test]
    fn command_line_overrides_environment_overrides_default() {
        let flags = [
            Flag::string("x-region", "here", "X_REGION", ""),
            Flag::int("x-count", 3, "X_COUNT", ""),
            Flag::bool("x-on", "X_ON", ""),
            Flag::strings("x-tag", "X_TAGS", ""),
        ];
        let env = |name: &str| match name {
            "X_REGION" => Some("env".to_owned()),
            "X_TAGS" => Some("a, b".to_owned()),
            _ => None,
        };
        let line = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let (values, rest) = parse(&flags, &line("--x-count 7 --other --x-on name"), env).unwrap();
        assert_eq!((values.string("x-region"), values.int("x-count"), values.bool("x-on")), ("env", 7, true));
        assert_eq!((values.strings("x-tag").len(), rest), (2, line("--other name")));
        let (values, _) =
            parse(&flags, &line("--x-region=line --x-tag=c --x-tag=d --x-on=false"), env).unwrap();
        assert_eq!(
            (values.string("x-region"), values.strings("x-tag")),
            ("line", &["c".to_owned(), "d".into()][..])
        );
        assert!(!values.bool("x-on"));
        assert_eq!(
            parse(&flags, &line("--x-count=many"), env).unwrap_err(),
            "--x-count: \"many\" is not a number"
        );
        assert!(parse(&flags, &line("--x-region"), env).unwrap_err().contains("requires a value"));
    }
}
