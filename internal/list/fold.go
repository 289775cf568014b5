package list

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
	"golang.org/x/text/unicode/rangetable"
)

// Fold returns the text as lists by name and searches compare it: in upper case, without
// accents and without differences of form. It is the twin of the function fold in the
// schema, and equal to it for every text (TestTheFoldIsThatOfTheDatabase). Neither depends
// on the locale, on ICU or on the version of Unicode: both know the characters of Unicode
// 13, which never change.
func Fold(t string) string { return string(appendFold(nil, []byte(t))) }

func appendFold(dst, t []byte) []byte {
	from, folds := len(dst), simpleFolds()
	for _, r := range string(t) { // which copies nothing
		switch {
		case int(r) < len(folds) && (folds[r] != "" || r < 0x590):
			dst = append(dst, folds[r]...)
		case r >= '\u4e00' && r <= '\u9fff': // Han: their own folds
			dst = utf8.AppendRune(dst, r)
		default:
			return append(dst[:from], foldAny(string(t))...)
		}
	}
	return dst
}

// simpleFolds are the folds of characters that fold one by one in a text without others: all
// before U+0590, where the marks that stay are of one class and so keep their order, and those
// behind it whose folds have no mark. The others have "".
var simpleFolds = sync.OnceValue(func() *[0x3400]string {
	isNotSimple := func(r rune) bool { return isLater(r) || norm.NFKD.PropertiesString(string(r)).CCC() > 0 }
	var folds [0x3400]string
	for r := range rune(len(folds)) {
		if fold := foldAny(string(r)); r < 0x590 || !strings.ContainsFunc(fold, isNotSimple) {
			folds[r] = fold
		}
	}
	return &folds
})

// foldAny folds any text, without the table of simpleFolds.
func foldAny(t string) string {
	if !strings.ContainsFunc(t, isLater) {
		t = decompose(t)
	}
	var b strings.Builder
	upper := capitals()
	for _, r := range t {
		switch {
		case r >= '\u0300' && r <= '\u036f': // a combining mark
		case upper[r] != "":
			b.WriteString(upper[r])
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// FoldKeyLength is how many characters of a folded name order it, as in the schema's function
// listedge_name_key. So many fit into a cursor even if each takes four bytes.
const FoldKeyLength = 80

// appendFoldKey appends the key that orders a name: the first FoldKeyLength characters of its fold.
// Keys compare as bytes, in Postgres by COLLATE "C".
func appendFoldKey(dst, name []byte) []byte {
	from, n := len(dst), 0
	dst = appendFold(dst, name)
	for i := range string(dst[from:]) {
		if n == FoldKeyLength {
			return dst[:from+i]
		}
		n++
	}
	return dst
}

// decompose returns the normal form NFKD. That of the package norm differs from it where
// more than 30 marks follow one another: it puts a joiner between them.
func decompose(t string) string {
	const joiner = "\u034f"
	if d := norm.NFKD.String(t); strings.Count(d, joiner) == strings.Count(t, joiner) {
		return d
	}
	var runes []rune
	for _, r := range t {
		runes = append(runes, []rune(norm.NFKD.String(string(r)))...)
	}
	class := func(r rune) uint8 { return norm.NFKD.PropertiesString(string(r)).CCC() }
	for from, to := 0, 0; from < len(runes); from = to { // a character and its marks
		for to = from + 1; to < len(runes) && class(runes[to]) != 0; to++ {
		}
		slices.SortStableFunc(runes[from:to], func(a, b rune) int { return cmp.Compare(class(a), class(b)) })
	}
	return string(runes)
}

// later has pairs of the first and the last character of all ranges that have no character
// in Unicode 13, and one that decomposes or combines in Unicode 14 to 17. Servers differ
// about them, so a text with one of them is not decomposed.
var later = []rune("" +
	"\u086b\u089f\u08c8\u08d2\u0c3a\u0c3c\u1715\u171f\u1ac1\u1aff\u1dfa\u1dfa\ua7cb\ua7f4" +
	"\U00010570\U000105ff\U00010768\U000107ff\U00010d3a\U00010e5f\U00010eb2\U00010eff\U00010f5a\U00010faf\U00011070\U0001107e\U00011375\U000113ff" +
	"\U00011ef9\U00011faf\U00014647\U000167ff\U00016b90\U00016e3f\U0001bca4\U0001cfff\U0001e02b\U0001e0ff\U0001e150\U0001e2bf\U0001e300\U0001e7ff")

func isLater(r rune) bool {
	for i := 0; i < len(later) && later[i] <= r; i += 2 {
		if r <= later[i+1] {
			return true
		}
	}
	return false
}

// capitals has what replaces a letter that does not decompose: its capital in Unicode 13, or the
// Latin letters that stand for it. A pair of small letter and capital never changes in a later
// version.
var capitals = sync.OnceValue(func() map[rune]string {
	m, known := map[rune]string{}, rangetable.Assigned("13.0.0")
	rangetable.Visit(unicode.Lower, func(r rune) {
		if capital := unicode.ToUpper(r); capital != r && unicode.In(r, known) && unicode.In(capital, known) && norm.NFKD.IsNormalString(string(r)) {
			m[r] = string(capital)
		}
	})
	for _, letter := range strings.Fields("ßSS ẞSS ÆAE æAE ŒOE œOE ØO øO ĐD đD ÐD ðD ĦH ħH ŁL łL ŦT ŧT") {
		r, size := utf8.DecodeRuneInString(letter)
		m[r] = letter[size:]
	}
	return m
})

// HasGram reports whether the index of grams can narrow the folded term down: whether the function listedge_search_grams
// of the schema finds any in it. That does so for three characters in a row, or one from Thai on.
func HasGram(folded string) bool {
	run := 0
	for _, r := range folded {
		if r == ' ' || r == '\n' {
			run = 0
			continue
		}
		run++
		if run == 3 || r >= '\u0e00' {
			return true
		}
	}
	return false
}
