//! Parsing of attributes and child elements.

use roxmltree::Node as Element;

use super::{Problem, problem};
use crate::{CpuId, CpuList};

/// Value of an attribute that is a whole number, at most `max`.
pub(super) fn number<N>(element: Element, name: &str, max: N) -> Result<N, Problem>
where
    N: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    let Some(text) = element.attribute(name) else {
        return problem(element, format!("`{name}` is missing"));
    };
    match text.parse() {
        Ok(number) if number <= max => Ok(number),
        _ => {
            let text: String = text.chars().take(40).collect();
            problem(
                element,
                format!("`{name}` is {text:?}; expected a whole number of at most {max}"),
            )
        }
    }
}

pub(super) fn decimal(element: Element, text: &str) -> Result<f64, Problem> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        _ => {
            let text: String = text.chars().take(40).collect();
            problem(
                element,
                format!("expected a number of at least 0, found {text:?}"),
            )
        }
    }
}

/// All numbers in the child elements with this name, which separate numbers by white space.
pub(super) fn numbers(element: Element, name: &str) -> Result<Vec<f64>, Problem> {
    let mut all = Vec::new();
    for child in element.children().filter(|child| child.has_tag_name(name)) {
        for word in child.text().unwrap_or("").split_whitespace() {
            all.push(decimal(child, word)?);
        }
    }
    Ok(all)
}

/// Members of `known` that are in one of hwloc's sets. A set is written as 32-bit words in hexadecimal, most
/// significant first, with `0xf...f` in front if all higher bits are set.
pub(super) fn cpuset(element: Element, name: &str, known: &CpuList) -> Result<CpuList, Problem> {
    let Some(text) = element.attribute(name) else {
        return problem(element, format!("`{name}` is missing"));
    };
    let (words, infinite) = match text.strip_prefix("0xf...f") {
        Some(rest) => (rest.strip_prefix(',').unwrap_or(rest), true),
        None => (text, false),
    };
    let mut bits: Vec<u32> = Vec::new();
    for word in words.rsplit(',') {
        // An empty word between commas is 0.
        let bits_of = match word.strip_prefix("0x").unwrap_or(word) {
            "" => Ok(0),
            digits => u32::from_str_radix(digits, 16),
        };
        let Ok(word) = bits_of else {
            let text: String = text.chars().take(40).collect();
            let message = format!("`{name}` is {text:?}; expected a set such as 0x000000ff");
            return problem(element, message);
        };
        bits.push(word);
    }
    if infinite && words.is_empty() {
        bits.clear();
    }
    let member = |cpu: &CpuId| match bits.get(cpu.0 as usize / 32) {
        Some(word) => word >> (cpu.0 % 32) & 1 == 1,
        None => infinite,
    };
    Ok(known.as_slice().iter().copied().filter(member).collect())
}
