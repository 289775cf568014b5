package load

import (
	_ "embed"
	"encoding/json"
	"sync"
)

// sampleWords are what sample data is made of.
type sampleWords struct {
	Languages []language
	Variants  []string // what products of any language may end with
	Emoji     []string
}

// language has the words of one language. Its adjectives agree with all its nouns.
type language struct {
	Share      int    // of a hundred rows
	Joint      string // what separates noun and adjective
	After      bool   // the adjective follows the noun
	FamilyLast bool   // the family name follows the given name
	Adjectives []string
	Nouns      []string
	Sentences  []string // of descriptions; %s is the product's name
	Units      []string
	Given      []string
	Family     []string
	Firms      []string // %s is a family name
	Streets    []string
	Cities     []string
	Phone      string // # is a digit
}

//go:embed words.json
var wordsJSON []byte

var words = sync.OnceValue(func() (w sampleWords) {
	if err := json.Unmarshal(wordsJSON, &w); err != nil {
		panic("BUG: words.json: " + err.Error())
	}
	return w
})
