//! How many machines of a tier may be unavailable at once.

/// Reads `maxUnavailable`: empty is 1, `N%` is that share rounded up, 0 is no limit (`None`).
pub fn limit(text: &str, count: usize) -> Result<Option<usize>, String> {
    if text.is_empty() {
        return Ok(Some(1));
    }
    let refused = || format!("concurrency {text:?} is neither a number nor a percentage");
    let number = match text.strip_suffix('%') {
        Some(percent) => {
            let percent: usize = percent.parse().map_err(|_| refused())?;
            if percent == 0 || percent > 100 {
                return Err(refused());
            }
            (count * percent).div_ceil(100)
        }
        None => text.parse().map_err(|_| refused())?,
    };
    Ok((number > 0).then_some(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_plane_check_16_numbers_percentages_and_garbage() {
        assert_eq!(limit("", 5), Ok(Some(1)));
        assert_eq!(limit("50%", 5), Ok(Some(3)));
        assert_eq!(limit("0", 5), Ok(None));
        assert_eq!(limit("2", 5), Ok(Some(2)));
        for bad in ["abc", "-1", "0%", "101%", "1.5", "%"] {
            assert!(limit(bad, 5).unwrap_err().contains(bad), "{bad}");
        }
    }
}
