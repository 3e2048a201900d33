//! A scrape of `/metrics`, parsed as by Prometheus.

use std::collections::{BTreeMap, BTreeSet};

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// The result of a scrape.
#[derive(Clone, Debug)]
pub struct Scrape {
    pub samples: Vec<Sample>,
    /// Metric families (without `_total` and the like) and their types.
    pub types: BTreeMap<String, String>,
}

impl Scrape {
    /// Panics if the text is not in the OpenMetrics format.
    pub fn parse(text: &str) -> Self {
        assert!(text.ends_with("# EOF\n"), "not complete: {text:?}");
        let (mut samples, mut types) = (vec![], BTreeMap::new());
        for line in text.lines() {
            if let Some(described) = line.strip_prefix("# TYPE ") {
                let (name, kind) = described.split_once(' ').expect(line);
                assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} is there twice");
            } else if !line.starts_with('#') {
                samples.push(sample(line));
            }
        }
        let shown: BTreeSet<_> =
            samples.iter().map(|sample| (sample.name.clone(), sample.labels.clone())).collect();
        assert_eq!(shown.len(), samples.len(), "a time series is there twice");
        Self { samples, types }
    }

    /// The sum of all samples of a name with these labels, and any others.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |sample: &&Sample| {
            labels.iter().all(|(key, value)| sample.labels.get(*key).is_some_and(|found| found == value))
        };
        self.samples.iter().filter(|sample| sample.name == name).filter(has).map(|sample| sample.value).sum()
    }

    /// The label names of all samples of a name; `None` if there are no samples.
    pub fn labels(&self, name: &str) -> Option<BTreeSet<&str>> {
        let mut found = self.samples.iter().filter(|sample| sample.name == name).peekable();
        found.peek()?;
        Some(found.flat_map(|sample| sample.labels.keys().map(String::as_str)).collect())
    }
}

fn sample(line: &str) -> Sample {
    let (series, value) = line.rsplit_once(' ').expect(line);
    let value = value.parse().expect(line);
    let Some((name, rest)) = series.split_once('{') else {
        return Sample { name: series.to_owned(), labels: BTreeMap::new(), value };
    };
    let mut rest = rest.strip_suffix('}').expect(line);
    let mut labels = BTreeMap::new();
    while let Some((key, after)) = rest.split_once("=\"") {
        let mut text = String::new();
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next().expect(line) {
                (at, '"') => break at,
                (_, '\\') => match characters.next().expect(line).1 {
                    'n' => text.push('\n'),
                    other => text.push(other),
                },
                (_, other) => text.push(other),
            }
        };
        labels.insert(key.trim_start_matches(',').to_owned(), text);
        rest = &after[end + 1..];
    }
    Sample { name: name.to_owned(), labels, value }
}
