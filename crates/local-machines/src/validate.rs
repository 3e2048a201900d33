//! Validates a request. The driver does this before anything is recorded, and the holder again because it does not
//! trust clients.

use crate::{
    error::{Error, Result},
    protocol::CreateOptions,
};

pub(crate) fn validate(name: &str, options: &CreateOptions) -> Result<()> {
    let label = |text: &str| {
        text.len() <= 63
            && text.starts_with(|first: char| first.is_ascii_alphanumeric())
            && text.chars().all(|each| each.is_ascii_alphanumeric() || each == '-' || each == '.')
    };
    if !label(name) {
        return Err(Error::Invalid(format!(
            "invalid machine name {name:?}: a name has up to 63 letters, digits, dots and dashes, and starts with a letter or digit"
        )));
    }
    if !options.hostname.is_empty() && !label(&options.hostname) {
        return Err(Error::Invalid(format!(
            "invalid host name {:?}: a name has up to 63 letters, digits, dots and dashes, and starts with a letter or digit",
            options.hostname
        )));
    }
    for mount in &options.mounts {
        if !mount.target.is_absolute() || mount.target.components().any(|part| part.as_os_str() == "..") {
            return Err(Error::Invalid(format!(
                "mount target {} must be an absolute path without `..`",
                mount.target.display()
            )));
        }
        if !mount.source.is_absolute() || !mount.source.exists() {
            return Err(Error::Invalid(format!("mount source {} does not exist", mount.source.display())));
        }
    }
    for (host, address) in &options.hosts {
        if !label(host) || address.parse::<std::net::IpAddr>().is_err() {
            return Err(Error::Invalid(format!(
                "invalid entry {host}={address} for /etc/hosts: expected a host name and an IP address"
            )));
        }
    }
    Ok(())
}
