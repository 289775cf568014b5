package origin

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"listedge/internal/list"
)

// The two folds are equal for every character, alone and among others, and for random
// texts. Where they are not, pages by name and searches lack rows.
func TestTheFoldIsThatOfTheDatabase(t *testing.T) {
	t.Parallel()
	var characters, inContext, random []string
	for r := rune(1); r <= unicode.MaxRune; r++ {
		switch {
		case r >= 0x30000 && r%64 != 0: // there is nothing to fold: many at once
			characters[len(characters)-1] += string(r)
		case utf8.ValidRune(r):
			characters, inContext = append(characters, string(r)), append(inContext, "a\u0301\u3099"+string(r)+"\u0327x")
		}
	}
	seeded := rand.New(rand.NewPCG(1, 2))
	for range 50_000 {
		text := ""
		for range 1 + seeded.IntN(12) { // Han and Hangul syllables are no longer than the others together
			text += characters[[]int{seeded.IntN(0x3000), seeded.IntN(0x1100), 0xa000 + seeded.IntN(0x3000)}[seeded.IntN(3)]]
		}
		random = append(random, text)
	}
	random = append(append(random, longNames()...), awkwardNames...)
	random = append(random, strings.Repeat("\u094d\u093c\u0301\u3099\u05b0", 20), strings.Repeat("ß", 100), strings.Repeat("é", 80)+"x",
		strings.Repeat("茶", 81))

	conn := connect(t, newDatabase(t))
	for name, texts := range map[string][]string{"characters": characters, "characters in context": inContext, "random texts": random} {
		t.Run(name, func(t *testing.T) {
			wrong := 0
			for some := range slices.Chunk(texts, 50_000) {
				var folds []string
				var keys []*string
				err := conn.QueryRow(t.Context(), `SELECT array_agg(listedge_fold(text) ORDER BY n),
					array_agg(CASE WHEN length(text) > 5 THEN listedge_name_key(text) END ORDER BY n)
					FROM unnest($1::text[]) WITH ORDINALITY AS texts (text, n)`, some).Scan(&folds, &keys)
				must(err)
				for i, text := range some {
					fold, key := list.Fold(text), []rune(folds[i])
					if fold != folds[i] || keys[i] != nil && string(key[:min(len(key), list.FoldKeyLength)]) != *keys[i] {
						if wrong++; wrong <= 10 {
							t.Errorf("%q: %q, and in the database %q", text, fold, folds[i])
						}
					}
				}
			}
			if wrong > 0 {
				t.Errorf("%d of %d differ", wrong, len(texts))
			}
		})
	}
}
