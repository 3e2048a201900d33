//! The flags of the built-in drivers, in the form that provisioning needs.

use std::path::Path;

use drover_local_machines::LocalDriver;
use drover_machine::driver::Driver;
use drover_machine::flags::FlagValue;
use drover_provisioning::machine::schema::{Drivers, Flag, FlagKind};

use crate::datadir::DataDir;

/// All built-in drivers.
pub struct Builtin {
    local: LocalDriver,
}

impl Builtin {
    pub fn new(data_dir: &DataDir, exe: &Path) -> Self {
        Self { local: LocalDriver::new(data_dir.path(), exe) }
    }
}

/// The driver of machines in a `drover sim fleet` process. It has no options. The fleet registers it and runs its
/// Jobs.
const SIM: &str = "sim";

impl Drivers for Builtin {
    fn flags(&self, driver: &str) -> Option<Vec<Flag>> {
        if driver == SIM {
            return Some(vec![]);
        }
        (driver == self.local.name()).then(|| self.local.flags().into_iter().map(flag).collect())
    }
}

fn flag(flag: drover_machine::flags::Flag) -> Flag {
    let (kind, default) = match &flag.value {
        FlagValue::String(text) => (FlagKind::Text, text.clone()),
        FlagValue::Int(number) => (FlagKind::Integer, number.to_string()),
        FlagValue::Bool(_) => (FlagKind::Boolean, String::new()),
        FlagValue::StringSlice(_) => (FlagKind::List, String::new()),
    };
    Flag { name: flag.name, kind, default, usage: flag.usage }
}
