//! SPDX licence expressions: `OR` needs one side allowed, `AND` needs both.

/// Whether `allowed` satisfies `expression`. The old `A/B` means `A OR B`.
///
/// Errors: what cannot be read as an expression.
pub fn satisfied(expression: &str, allowed: &dyn Fn(&str) -> bool) -> Result<bool, String> {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser {
        tokens: &tokens,
        allowed,
    };
    let verdict = parser.either()?;
    match parser.tokens.first() {
        None => Ok(verdict),
        Some(token) => Err(format!("unexpected `{token}` in `{expression}`")),
    }
}

struct Parser<'a> {
    tokens: &'a [&'a str],
    allowed: &'a dyn Fn(&str) -> bool,
}

impl Parser<'_> {
    fn either(&mut self) -> Result<bool, String> {
        let mut verdict = self.both()?;
        while self.take("OR") {
            verdict |= self.both()?;
        }
        Ok(verdict)
    }

    fn both(&mut self) -> Result<bool, String> {
        let mut verdict = self.one()?;
        while self.take("AND") {
            verdict &= self.one()?;
        }
        Ok(verdict)
    }

    fn one(&mut self) -> Result<bool, String> {
        if self.take("(") {
            let verdict = self.either()?;
            return if self.take(")") {
                Ok(verdict)
            } else {
                Err("missing `)`".to_owned())
            };
        }
        let Some((licence, rest)) = self.tokens.split_first() else {
            return Err("a licence is missing".to_owned());
        };
        if matches!(*licence, ")" | "AND" | "OR" | "WITH") {
            return Err(format!("`{licence}` where a licence should be"));
        }
        self.tokens = rest;
        if !self.take("WITH") {
            return Ok((self.allowed)(licence));
        }
        let Some((exception, rest)) = self.tokens.split_first() else {
            return Err(format!("`{licence} WITH` nothing"));
        };
        self.tokens = rest;
        Ok((self.allowed)(&format!("{licence} WITH {exception}")))
    }

    fn take(&mut self, token: &str) -> bool {
        match self.tokens.split_first() {
            Some((first, rest)) if *first == token => {
                self.tokens = rest;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::satisfied;

    fn mit_or_isc(expression: &str) -> Result<bool, String> {
        satisfied(expression, &|licence| matches!(licence, "MIT" | "ISC"))
    }

    #[test]
    fn one_side_of_or_is_enough_and_both_sides_of_and_are_needed() {
        for (expression, verdict) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT OR GPL-3.0", true),
            ("GPL-3.0/MIT", true),
            ("MIT AND GPL-3.0", false),
            ("(GPL-3.0 OR MIT) AND ISC", true),
            ("GPL-3.0 OR MIT AND BSL-1.0", false),
            ("MIT WITH Something-exception", false),
            ("MIT WITH Something-exception OR ISC", true),
        ] {
            assert_eq!(mit_or_isc(expression), Ok(verdict), "{expression}");
        }
    }

    #[test]
    fn a_broken_expression_is_an_error_not_a_verdict() {
        for expression in ["", "MIT OR", "(MIT", "MIT MIT", "AND MIT", "MIT WITH"] {
            assert!(mit_or_isc(expression).is_err(), "{expression}");
        }
    }
}
