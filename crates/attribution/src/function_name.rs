//! Short names of functions. C++ demanglers write all parameter types and a template's return type, so one name can
//! take several lines.

use std::borrow::Cow;

use nearpage_wire::without_return_type;

/// Shortens `void ns::grid<double>::step(std::vector<int> const&) const` to `ns::grid<double>::step(…) const`.
pub(crate) fn brief_function(name: &str) -> Cow<'_, str> {
    if !name.contains('(') {
        return name.into();
    }
    // A return type ends in a space, but so does the word `operator` in names of some operators.
    let name = match name.contains("operator") {
        true => name,
        false => without_return_type(name),
    };
    without_arguments(name, ['(', ')']).into()
}

/// Replaces the text within brackets that follow a name by an ellipsis.
pub fn without_arguments(text: &str, [open, close]: [char; 2]) -> String {
    let mut short = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(open) {
        let (before, from) = rest.split_at(at);
        short += before;
        let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '>' | ')');
        // The symbols of `operator<<` are part of the name before the brackets.
        let is_symbol = |c: char| !c.is_alphanumeric() && c != '_' && c != ' ';
        let follows_operator =
            open == '(' && before.trim_end_matches(is_symbol).ends_with("operator");
        let follows_name = follows_operator || before.ends_with(is_of_name);
        // The `<` of `operator<` opens no bracket.
        let is_operator = open == '<' && short.trim_end_matches('<').ends_with("operator");
        match bracketed(from, [open, close]) {
            Some(end) if follows_name && !is_operator && end > 2 => {
                short.extend([open, '…', close]);
                rest = &from[end..];
            }
            _ => {
                short.push(open);
                rest = &from[open.len_utf8()..];
            }
        }
    }
    short + rest
}

/// End of the bracketed text at the start of `text`, in bytes; none if no bracket closes it.
fn bracketed(text: &str, [open, close]: [char; 2]) -> Option<usize> {
    let mut depth = 0;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        if c == open {
            depth += 1;
        } else if c == close && before != '-' {
            depth -= 1;
            if depth == 0 {
                return Some(at + c.len_utf8());
            }
        }
        before = c;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_no_parameters_and_no_return_types() {
        for (name, brief) in [
            ("main", "main"),
            (
                "void ns::advance<double>(ns::field<double>&, unsigned long)",
                "ns::advance<double>(…)",
            ),
            (
                "std::vector<int, std::allocator<int> > ns::make<int>(int)",
                "ns::make<int>(…)",
            ),
            ("operator new(unsigned long)", "operator new(…)"),
            (
                "(anonymous namespace)::f(int)",
                "(anonymous namespace)::f(…)",
            ),
            (
                "main::{lambda(int)#1}::operator()(int) const",
                "main::{lambda(…)#1}::operator()(…) const",
            ),
            (
                "<alloc::vec::Vec<T> as core::clone::Clone>::clone",
                "<alloc::vec::Vec<T> as core::clone::Clone>::clone",
            ),
            ("a b(", "b("),
            ("", ""),
        ] {
            assert_eq!(brief_function(name), brief);
        }
    }

    #[test]
    fn arguments_are_what_follows_a_name() {
        for (name, short) in [
            (
                "(anonymous namespace)::f(int, int)",
                "(anonymous namespace)::f(…)",
            ),
            (
                "bool operator< <int>(a const&, b)",
                "bool operator< <int>(…)",
            ),
            ("a::operator<<(std::ostream&, a)", "a::operator<<(…)"),
            ("a::operator()(int, long) const", "a::operator()(…) const"),
            ("cut short f(int, std::vect", "cut short f(int, std::vect"),
            ("f()", "f()"),
        ] {
            assert_eq!(without_arguments(name, ['(', ')']), short);
        }
        for (name, short) in [
            ("a::operator<<(b<c>)", "a::operator<<(b<…>)"),
            ("x->y<z>", "x->y<…>"),
            ("f<(a)->b>::g", "f<…>::g"),
        ] {
            assert_eq!(without_arguments(name, ['<', '>']), short);
        }
    }
}
