//! Names of threads that libstdc++'s `std::thread` creates. All have the same start routine, so the function that they
//! execute names them.

use super::modules::Modules;
use crate::ModuleId;

/// Name of `std::thread` threads that execute unknown or different functions.
pub(super) const STANDARD_THREAD: &str = "std::thread";

/// Whether the module is libstdc++, which contains the start routine of all `std::thread` threads.
pub(super) fn is_standard(modules: &Modules, module: ModuleId) -> bool {
    modules.name(module).starts_with("libstdc++")
}

/// Name of the function that a `std::thread` thread executes; `callable` is [`super::images::ThreadRecord::callable`].
pub(super) fn function(
    modules: &Modules,
    (pid, time_ns): (u32, u64),
    callable: [u64; 2],
) -> String {
    let named = |address: u64| {
        let (module, offset) = modules.resolve(pid, time_ns, address)?;
        modules.named_function(module, offset)
    };
    let [run, pointer] = callable;
    let name = named(run).and_then(|run| {
        let callable = callable_type(&run)?;
        match is_pointer(callable, "(*)") {
            true => named(pointer),
            false => Some(callable.to_owned()),
        }
    });
    name.unwrap_or_else(|| STANDARD_THREAD.to_owned())
}

/// Type of the callable passed to `std::thread`, read from the name of its `_M_run` instance. `None` for a pointer to a
/// member, as its type does not name the member.
fn callable_type(run: &str) -> Option<&str> {
    let (_, arguments) = run
        .strip_suffix("::_M_run()")?
        .strip_prefix("std::thread::_State_impl<")?
        .split_once("std::tuple<")?;
    let mut depth = 0;
    let end = arguments.find(|letter| match letter {
        '<' | '(' | '{' | '[' => {
            depth += 1;
            false
        }
        ',' | '>' if depth == 0 => true,
        '>' | ')' | '}' | ']' => {
            depth -= 1;
            false
        }
        _ => false,
    })?;
    let callable = arguments[..end].trim();
    (!callable.is_empty() && !is_pointer(callable, "::*)")).then_some(callable)
}

/// Whether the type itself is a pointer, recognised by `mark`, rather than a lambda or template instance with a pointer
/// as parameter.
fn is_pointer(name: &str, mark: &str) -> bool {
    let Some(at) = name.find(mark) else {
        return false;
    };
    let count = |letter: char| name[..at].matches(letter).count();
    count('{') == count('}') && count('<') == count('>')
}

#[cfg(test)]
mod tests {
    use super::{callable_type, is_pointer};

    #[test]
    fn the_callable_of_std_thread_is_read_from_its_instance() {
        let run = |arguments: &str| {
            let name = format!(
                "std::thread::_State_impl<std::thread::_Invoker<std::tuple<{arguments}> > >::_M_run()"
            );
            callable_type(&name).map(str::to_owned)
        };
        for (arguments, expected) in [
            (
                "main::{lambda(int, double*)#1}, int",
                Some("main::{lambda(int, double*)#1}"),
            ),
            (
                "void (*)(int, double*), int, double*",
                Some("void (*)(int, double*)"),
            ),
            ("Sweep<double, 3>", Some("Sweep<double, 3>")),
            (
                "main::{lambda(void (*)())#1}",
                Some("main::{lambda(void (*)())#1}"),
            ),
            ("void (Pool::*)(int), Pool*, int", None),
            ("", None),
        ] {
            assert_eq!(run(arguments).as_deref(), expected, "{arguments}");
        }
        assert!(is_pointer("std::vector<int> (*)(int)", "(*)"));
        for not in [
            "main::{lambda(void (*)())#1}",
            "Task<void (*)(int)>",
            "Sweep",
        ] {
            assert!(!is_pointer(not, "(*)"), "{not}");
        }
        for other in [
            "",
            "worker(int)",
            "std::thread::_State_impl<std::tuple<a",
            "std::thread::_State_impl<>::_M_run()",
        ] {
            assert_eq!(callable_type(other), None, "{other}");
        }
    }
}
