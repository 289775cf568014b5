package list_test

import (
	"fmt"
	"strings"
	"testing"

	"listedge/internal/list"
)

// conditionColumns are columns of all types that conditions tell apart.
var conditionColumns = []string{"id int4", "flag bool?", "other bool?", "name text?", "short bpchar?", "loose citext?", "brief varchar?", "kind enum(a,b)?",
	"also enum(a,b)?",
	"size enum(s,m)?", "qty int4?", "price numeric?", "at timestamptz?", "score float8?", "key uuid?", "doc jsonb?", "tags _text?", `Größe_1 int2?`, `"x int8?`}

// condition returns the condition of the only filter of a list, whose columns begin with id.
func condition(t testing.TB, text string) (list.Condition, *list.List, error) {
	t.Helper()
	l, err := tryDescribed(fmt.Sprintf("key: id\nfields: {id: }\norders: {id: {by: id}}\nfilters: {f: {on: %q}}", text), conditionColumns...)
	if err != nil {
		return list.Condition{}, nil, err
	}
	return l.Filters[0].Values[0].Keep, l, nil
}

func TestAConditionIsWrittenInSQL(t *testing.T) {
	for text, want := range map[string]string{
		"flag":                              `"flag"`,
		" not  flag ":                       `NOT "flag"`,
		"flag = true and other = FALSE":     `"flag" AND NOT "other"`,
		"flag <> true AND other<=false":     `"flag" <> true AND "other" <= false`,
		"flag = other":                      `"flag" = "other"`,
		"at is null and tags Is Not Null":   `"at" IS NULL AND "tags" IS NOT NULL`,
		"name = 'it''s ; \"x\"'":            `"name" COLLATE "C" = 'it''s ; "x"'`,
		"name < brief and loose >= 'A'":     `"name" COLLATE "C" < "brief" COLLATE "C" AND "loose"::text COLLATE "C" >= 'A'`,
		"short = 'a'":                       `"short"::text COLLATE "C" = 'a'`,
		"kind <> 'b' and kind = also":       `"kind"::"enum a,b" <> 'b' AND "kind"::"enum a,b" = "also"::"enum a,b"`,
		"qty >= -5 and price < 0.50":        `"qty" >= -5 AND "price" < 0.50`,
		"qty > price":                       `"qty" > "price"`,
		`"qty" = 1 and Größe_1 = "\"\"x"`:   "",
		`"qty" = 1 and Größe_1 = """x"`:     `"qty" = 1 AND "Größe_1" = """x"`,
		"qty=1and price=99999999999999999.": "",
	} {
		t.Run(text, func(t *testing.T) {
			c, _, err := condition(t, text)
			if c.String() != want || (err == nil) != (want != "") {
				t.Errorf("%s, want %s: %v", c, want, err)
			}
		})
	}
}

func TestAConditionHasAMistake(t *testing.T) {
	for text, want := range map[string]string{
		"nothing":              "there is no column nothing",
		"Flag":                 "there is no column Flag",
		"flag or other":        "conditions have no or",
		"flag other":           `"other" stands where a condition ends; write and`,
		"flag and":             "a column is missing at the end",
		"and flag":             `"and" stands where a column is expected`,
		"not not flag":         `"not" stands where a column is expected`,
		"not qty":              `column "qty" is of type int4, and a truth value is not; write a number`,
		"qty":                  `column "qty" is of type int4, and a truth value is not`,
		"flag = 1":             `column "flag" is of type bool, and a number is not; write true, false`,
		"qty = '1'":            "a text is not; write a number without quotes",
		"name = 1":             "a number is not; write a text in single quotes",
		"name = qty":           `column "qty" of type int4 is not`,
		"kind = 'c'":           `"c" is no value of column "kind", an enum; write one of 'a', 'b'`,
		"kind < 'b'":           `column "kind" is an enum, and < orders; write = or <>`,
		"kind = size":          `column "size" of type "enum s,m" is not`,
		"kind = 1":             "write one of its values in single quotes",
		"name = kind":          `column "kind" of type "enum a,b" is not`,
		"at > '2026-01-01'":    `column "at" is of type timestamptz, which conditions do not compare; write is null`,
		"score > 1":            "which conditions do not compare",
		"key = 'x'":            "which conditions do not compare",
		"name = null":          "nothing is equal to null; write is null",
		"name is 'x'":          `"x" follows is; write is null or is not null`,
		"name is not":          `"the end" follows is`,
		"name != 'x'":          "!= is no operator; write <>",
		"name == 'x'":          `"=" stands where a column is expected`,
		"name = 'x":            "a ' is not closed",
		`name = "x`:            `a " is not closed`,
		"qty = 007":            `"007" is no number`,
		"qty = 1e5":            `"1e5" is no number`,
		"qty = 1.":             `"1." is no number`,
		"qty = +1":             `"+1" is no number`,
		"qty = - 1":            `"-" is no number`,
		"qty + 1 = 2":          `"+" is no number`,
		"(flag)":               `"(" is not understood`,
		"5 < qty":              "write the column first",
		"'x' = name":           "write the column first",
		"name like 'x%'":       `"like" stands where a condition ends`,
		"lower(name) = 'x'":    `"(" is not understood`,
		"name = 'a\x00b'":      "has a character that no text of Postgres has",
		`"" = 1`:               `"" stands where a column is expected`,
		"flag and nope = gone": "there is no column gone",
	} {
		t.Run(text, func(t *testing.T) {
			_, _, err := condition(t, text)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
		})
	}
}
