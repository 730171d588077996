//! The files and modules of a crate.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::{fs, io};

use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, ExprLit, Item, ItemMod, Lit, Meta, Token};

use crate::names::Scope;

/// The text of each file, by its path from the repository's root, with `/` between folders.
pub type Sources = BTreeMap<String, String>;

/// Reads all Rust files below `root`/`folder`.
///
/// # Errors
/// Those of the file system.
pub fn sources_below(root: &Path, folder: &str) -> io::Result<Sources> {
    let mut sources = Sources::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else if path.ends_with(".rs") {
                let text = fs::read_to_string(entry.path())?;
                sources.insert(path, text);
            }
        }
    }
    Ok(sources)
}

/// The parsed modules of a crate, and what is in scope in each.
pub struct Crate {
    /// The folder of its sources.
    pub folder: String,
    pub(crate) files: Vec<String>,
    /// The first one is the root.
    pub(crate) modules: Vec<Module>,
    /// The files that define a `macro_rules!` of a name: such names also have a scope that is not that of
    /// paths.
    pub(crate) macros: HashMap<String, Vec<usize>>,
    /// Sentences about modules without a file and files without a module.
    pub(crate) lost: Vec<String>,
}

pub(crate) struct Module {
    pub(crate) parent: Option<usize>,
    pub(crate) name: String,
    pub(crate) file: usize,
    /// Without what stands in inline modules, which are modules of their own here.
    pub(crate) items: Vec<Item>,
    pub(crate) scope: Scope,
    /// Only built for tests.
    pub(crate) test: bool,
}

impl Crate {
    /// Parses the crate whose root is `lib.rs`, or else `main.rs`, in `folder`.
    ///
    /// # Errors
    /// If there is no root, or a file is not Rust.
    pub fn parse(folder: &str, sources: &Sources) -> Result<Self, String> {
        let root = ["lib.rs", "main.rs"].map(|name| format!("{folder}/{name}"));
        let Some(root) = root.iter().find(|path| sources.contains_key(*path)) else {
            return Err(format!("{folder}: neither lib.rs nor main.rs is there"));
        };
        let krate = Self {
            folder: folder.to_owned(),
            files: Vec::new(),
            modules: Vec::new(),
            macros: HashMap::new(),
            lost: Vec::new(),
        };
        let mut reader = Reader { sources, krate };
        reader.file(None, "", root, folder.to_owned(), false)?;
        let mut krate = reader.krate;
        for path in sources.keys() {
            let other_root =
                *path == format!("{folder}/main.rs") || path.starts_with(&format!("{folder}/bin/"));
            if !other_root && !krate.files.contains(path) {
                krate.lost.push(format!("{path}:1: no module of the crate is this file"));
            }
        }
        Ok(krate)
    }

    /// Whether nothing but tests is in the file.
    pub(crate) fn is_test_file(&self, file: usize) -> bool {
        self.modules.iter().filter(|module| module.file == file).all(|module| module.test)
    }

    /// The names from the root down to a module.
    pub(crate) fn path_of(&self, module: usize) -> Vec<&str> {
        let mut path: Vec<_> = self
            .and_ancestors(module)
            .map(|module| module.name.as_str())
            .filter(|name| !name.is_empty())
            .collect();
        path.reverse();
        path
    }

    fn and_ancestors(&self, module: usize) -> impl Iterator<Item = &Module> {
        let mut next = Some(module);
        std::iter::from_fn(move || {
            let module = &self.modules[next?];
            next = module.parent;
            Some(module)
        })
    }
}

struct Reader<'a> {
    sources: &'a Sources,
    krate: Crate,
}

/// Where a module stands.
struct Place {
    file: usize,
    /// Where the paths of `#[path]` begin.
    path_folder: String,
    /// Where the files of its modules are looked for.
    folder: String,
}

impl Reader<'_> {
    /// The module that is the file at `path`; the files of its own modules are looked for in `folder`.
    fn file(
        &mut self,
        parent: Option<usize>,
        name: &str,
        path: &str,
        folder: String,
        test: bool,
    ) -> Result<usize, String> {
        let parsed = syn::parse_file(&self.sources[path])
            .map_err(|error| format!("{path}:{}: {error}", error.span().start().line))?;
        let file = self.krate.files.iter().position(|known| known == path).unwrap_or_else(|| {
            self.krate.files.push(path.to_owned());
            self.krate.files.len() - 1
        });
        let test = test || is_for_tests(&parsed.attrs);
        let place = Place { file, path_folder: folder_of(path).to_owned(), folder };
        self.module(parent, name, &place, parsed.items, test)
    }

    fn module(
        &mut self,
        parent: Option<usize>,
        name: &str,
        place: &Place,
        mut items: Vec<Item>,
        test: bool,
    ) -> Result<usize, String> {
        let module = self.krate.modules.len();
        let mut scope = Scope::of(&items);
        self.krate.modules.push(Module {
            parent,
            name: name.to_owned(),
            file: place.file,
            items: Vec::new(),
            scope: Scope::default(),
            test,
        });
        for item in &mut items {
            match item {
                Item::Mod(declared) => {
                    let test = test || is_for_tests(&declared.attrs);
                    let children = self.children(module, place, declared, test)?;
                    let name = declared.ident.to_string();
                    scope.children.entry(name).or_default().extend(children.into_iter().filter(|_| !test));
                }
                Item::Macro(made) if !test && !is_for_tests(&made.attrs) => {
                    if let Some(name) = &made.ident {
                        self.krate.macros.entry(name.to_string()).or_default().push(place.file);
                    }
                }
                _ => {}
            }
        }
        self.krate.modules[module].items = items;
        self.krate.modules[module].scope = scope;
        Ok(module)
    }

    /// The modules that one declaration makes: several, if `cfg_attr` chooses between files.
    fn children(
        &mut self,
        parent: usize,
        place: &Place,
        declared: &mut ItemMod,
        test: bool,
    ) -> Result<Vec<usize>, String> {
        let name = declared.ident.to_string();
        let plain = name.trim_start_matches("r#");
        let below = format!("{}/{plain}", place.folder);
        if let Some((_, items)) = declared.content.take() {
            let place = Place { file: place.file, path_folder: below.clone(), folder: below };
            return Ok(vec![self.module(Some(parent), &name, &place, items, test)?]);
        }
        let given = declared.attrs.iter().flat_map(|attribute| given_paths(&attribute.meta));
        // A file that is named by its path has its modules beside it.
        let mut candidates: Vec<_> = given
            .map(|path| joined(&place.path_folder, &path))
            .map(|path| (path.clone(), folder_of(&path).to_owned()))
            .collect();
        if !declared.attrs.iter().any(|attribute| attribute.path().is_ident("path")) {
            candidates
                .extend([format!("{below}.rs"), format!("{below}/mod.rs")].map(|path| (path, below.clone())));
        }
        let mut children = Vec::new();
        for (path, folder) in candidates {
            if self.sources.contains_key(&path) {
                children.push(self.file(Some(parent), &name, &path, folder, test)?);
            }
        }
        if children.is_empty() {
            let (file, line) = (&self.krate.files[place.file], declared.ident.span().start().line);
            self.krate.lost.push(format!("{file}:{line}: the module `{name}` has no file"));
        }
        Ok(children)
    }
}

fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

fn joined(folder: &str, path: &str) -> String {
    let mut parts: Vec<_> = folder.split('/').collect();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." => _ = parts.pop(),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// The files of `#[path = "…"]` and `#[cfg_attr(…, path = "…")]`.
fn given_paths(meta: &Meta) -> Vec<String> {
    match meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(path), .. }) => vec![path.value()],
            _ => Vec::new(),
        },
        Meta::List(list) if list.path.is_ident("cfg_attr") => {
            parts_of(list).iter().flat_map(given_paths).collect()
        }
        _ => Vec::new(),
    }
}

fn parts_of(list: &syn::MetaList) -> Vec<Meta> {
    let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
    parts.map(|parts| parts.into_iter().collect()).unwrap_or_default()
}

/// Whether an item with these attributes is only built for tests.
pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => parts_of(list).iter().any(holds_only_in_tests),
        _ => false,
    })
}

fn holds_only_in_tests(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") => parts_of(list).iter().any(holds_only_in_tests),
        Meta::List(list) if list.path.is_ident("any") => {
            let parts = parts_of(list);
            !parts.is_empty() && parts.iter().all(holds_only_in_tests)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_that_only_tests_fulfil() {
        for (condition, expected) in [
            ("test", true),
            ("all(feature = \"std\", test)", true),
            ("any(test, all(test, unix))", true),
            ("any(test, feature = \"conformance\")", false),
            ("not(test)", false),
            ("any()", false),
            ("fuzzing", false),
        ] {
            let item: ItemMod = syn::parse_str(&format!("#[cfg({condition})] mod a;")).unwrap();
            assert_eq!(is_for_tests(&item.attrs), expected, "{condition}");
        }
    }
}
