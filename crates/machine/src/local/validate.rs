//! What a machine cannot be made with. Asked by the driver before anything is written down, and again by the holder,
//! which trusts no client.

use super::{
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
            "{name:?} is no machine name: up to 63 letters, digits, dots and dashes, a letter or digit first"
        )));
    }
    if !options.hostname.is_empty() && !label(&options.hostname) {
        return Err(Error::Invalid(format!(
            "{:?} is no host name: up to 63 letters, digits, dots and dashes, a letter or digit first",
            options.hostname
        )));
    }
    for mount in &options.mounts {
        if !mount.target.is_absolute() || mount.target.components().any(|part| part.as_os_str() == "..") {
            return Err(Error::Invalid(format!("mount target {} must be absolute", mount.target.display())));
        }
        if !mount.source.is_absolute() || !mount.source.exists() {
            return Err(Error::Invalid(format!("mount source {} does not exist", mount.source.display())));
        }
    }
    for (host, address) in &options.hosts {
        if !label(host) || address.parse::<std::net::IpAddr>().is_err() {
            return Err(Error::Invalid(format!("{host}={address} is no name and address for /etc/hosts")));
        }
    }
    Ok(())
}
