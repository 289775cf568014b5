package list

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// testdata/names.tsv has names of many scripts, composed and decomposed, with their folds
// and in their order. Its folds are those of Node.js 20, which has Unicode 17:
//
//	[...name.normalize('NFKD').replace(/[\u0300-\u036f]/g, '')].map((c) => latin[c] ?? c.toUpperCase()).join('')
//
// where latin has ß ẞ æ Æ œ Œ ø Ø đ Đ ð Ð ħ Ħ ł Ł ŧ Ŧ ı.
func TestNamesOfManyScriptsFoldAsInNode(t *testing.T) {
	table, err := os.ReadFile("testdata/names.tsv")
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for line := range strings.Lines(string(table)) {
		name, want, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		t.Run(name, func(t *testing.T) {
			if is := Fold(name); is != want {
				t.Errorf("%q, want %q", is, want)
			}
		})
		keys = append(keys, string(appendFoldKey(nil, []byte(name))))
	}
	if len(keys) < 90 || !slices.IsSorted(keys) {
		t.Errorf("%d names, not in the order of their keys", len(keys))
	}
}

func TestAFoldIsTheSameForEveryFormOfAText(t *testing.T) {
	x20 := func(marks string) string { return strings.Repeat(marks, 20) } // norm orders 30 at most
	for name, texts := range map[string][]string{
		"case":                 {"Éa", "éA", "E\u0301A", "e\u0301a"},
		"sharp s":              {"Straße", "STRASSE", "STRAẞE", "straſſe"},
		"final sigma":          {"ΟΔΟΣ", "οδος", "οδοσ", "Οδός"},
		"dotted and dotless i": {"İI", "ıi", "i\u0307ı"},
		"ligatures":            {"ﬁn", "FIN"},
		"width":                {"ＡＢ％", "ab%"},
		"order of marks":       {"a\u0323\u0302", "ậ", "\u0226\u0302\u0323"},
		"grapheme joiner":      {"a\u034fb", "AB"},
		"many marks": {"x" + x20("\u094d\u093c\u3099\u05b0"), "x" + x20("\u3099\u05b0\u093c\u094d"),
			"x" + x20("\u093c") + x20("\u3099") + x20("\u094d") + x20("\u05b0")},
		"voiced kana":                  {"ガ", "ｶﾞ", "カ\u3099"},
		"Hangul":                       {"한", "\u1112\u1161\u11ab"},
		"younger than Unicode 13, and": {"é\U0001e030", "é\U0001e030"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, text := range texts[1:] {
				if is, want := Fold(text), Fold(texts[0]); is != want {
					t.Errorf("%q: %q, want %q", text, is, want)
				}
			}
		})
	}
}

func TestAKeyIsTheFirst80CharactersOfTheFold(t *testing.T) {
	for name, want := range map[string]string{
		"":                              "",
		"\u0301":                        "",
		"a":                             "A",
		strings.Repeat("x", 79) + "éyz": strings.Repeat("X", 79) + "E",
		strings.Repeat("茶", 100):        strings.Repeat("茶", 80),
		strings.Repeat("ß", 100):        strings.Repeat("S", 80),
	} {
		if is := string(appendFoldKey(nil, []byte(name))); is != want {
			t.Errorf("%q: %q, want %q", name, is, want)
		}
	}
}
