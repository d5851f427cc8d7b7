//! Suggestions of names that are close to a name that was not found.

/// Longest name that is compared: longer names are mangled and tell a person nothing.
const NAME_MAX: usize = 100;

/// `; did you mean …?` with up to three close names; empty if no name is close.
pub(crate) fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let limit = (name.len() / 3).max(2);
    let mut close: Vec<(usize, &str)> = known
        .filter(|other| other.len() <= NAME_MAX && other.len().abs_diff(name.len()) <= limit)
        .map(|other| (distance(name, other), other))
        .filter(|&(distance, _)| distance <= limit && distance < name.len())
        .collect();
    close.sort_unstable();
    close.dedup();
    let names: Vec<String> = close
        .iter()
        .take(3)
        .map(|(_, other)| format!("`{other}`"))
        .collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("; did you mean {}?", names.join(" or ")),
    }
}

/// Levenshtein distance in bytes, case ignored.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substituted = diagonal + usize::from(!x.eq_ignore_ascii_case(&y));
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_names_are_named() {
        let known = ["cvar", "cjac", "stdout", "cvars"];
        assert_eq!(
            did_you_mean("cvra", known.into_iter()),
            "; did you mean `cvar` or `cvars`?"
        );
        assert_eq!(
            did_you_mean("CVARS", known.into_iter()),
            "; did you mean `cvars` or `cvar`?"
        );
        assert_eq!(did_you_mean("matrix", known.into_iter()), "");
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
