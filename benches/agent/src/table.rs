//! Prints the measurements as a table.

/// One measurement of one program.
pub(crate) struct Row {
    what: String,
    aim: &'static str,
    amount: Amount,
}

#[derive(Clone, Copy)]
pub(crate) enum Amount {
    Bytes(u64),
    Percent(f64),
    Count(usize),
    Nanoseconds(u128),
}

impl Row {
    pub(crate) fn new(what: &str, aim: &'static str, amount: Amount) -> Self {
        Self { what: what.to_owned(), aim, amount }
    }
}

impl Amount {
    fn number(self) -> f64 {
        match self {
            Self::Bytes(bytes) => bytes as f64 / (1024.0 * 1024.0),
            Self::Percent(percent) => percent,
            Self::Count(count) => count as f64,
            Self::Nanoseconds(nanoseconds) => nanoseconds as f64 / 1e6,
        }
    }

    fn text(self) -> String {
        let number = self.number();
        match self {
            Self::Bytes(_) => format!("{number:.1} MiB"),
            Self::Percent(_) => format!("{number:.2} %"),
            Self::Count(_) => format!("{number}"),
            Self::Nanoseconds(_) => format!("{number:.1} ms"),
        }
    }
}

/// Drover's agent only.
pub(crate) fn single(ours: &[Row]) -> String {
    let mut table = "| what | aim | measured |\n|---|---|---|\n".to_owned();
    for row in ours {
        table += &format!("| {} | {} | {} |\n", row.what, row.aim, row.amount.text());
    }
    table
}

/// Drover's agent with its own protocol and with the original's (`alike`), and the original, where a value exists.
pub(crate) fn comparison(ours: &[Row], alike: &[Row], theirs: &[Row]) -> String {
    let mut table = "| what | aim | ours | ours, by checksums | original | original ÷ ours, by checksums |\n\
                     |---|---|---|---|---|---|\n"
        .to_owned();
    for row in ours {
        let find = |rows: &[Row]| rows.iter().find(|other| other.what == row.what).map(|other| other.amount);
        let text = |amount: Option<Amount>| amount.map_or_else(|| "–".to_owned(), Amount::text);
        let (alike, theirs) = (find(alike), find(theirs));
        let ratio = alike.zip(theirs).map(|(alike, theirs)| theirs.number() / alike.number());
        let ratio =
            ratio.filter(|ratio| ratio.is_finite()).map_or_else(|| "–".to_owned(), |r| format!("{r:.1}"));
        table += &format!(
            "| {} | {} | {} | {} | {} | {ratio} |\n",
            row.what,
            row.aim,
            row.amount.text(),
            text(alike),
            text(theirs)
        );
    }
    table
}
