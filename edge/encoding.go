package edge

import "bytes"

// acceptsGzip reads Accept-Encoding (RFC 9110, 12.5.3): gzip is acceptable, and
// identity is not preferred to it. What is not named has the weight of *; an
// identity that neither names is acceptable, and preferred to nothing.
func acceptsGzip(lines [][]byte) bool {
	gzip, identity, others := -1, -1, -1 // thousandths; -1 = not named
	for _, line := range lines {
		for len(line) > 0 {
			var item []byte
			item, line, _ = bytes.Cut(line, []byte{','})
			coding, parameters, _ := bytes.Cut(item, []byte{';'})
			switch coding = bytes.TrimSpace(coding); {
			case bytes.EqualFold(coding, []byte("gzip")), bytes.EqualFold(coding, []byte("x-gzip")):
				gzip = max(gzip, weight(parameters))
			case bytes.EqualFold(coding, []byte("identity")):
				identity = weight(parameters)
			case string(coding) == "*":
				others = weight(parameters)
			}
		}
	}
	if gzip < 0 {
		gzip = others
	}
	if identity < 0 {
		identity = others
	}
	return gzip > 0 && gzip >= identity
}

// weight is the q of an item's parameters, in thousandths. One that is not
// valid counts as absent, which is 1.
func weight(parameters []byte) int {
	for len(parameters) > 0 {
		var p []byte
		p, parameters, _ = bytes.Cut(parameters, []byte{';'})
		name, value, _ := bytes.Cut(bytes.TrimSpace(p), []byte{'='})
		if bytes.EqualFold(name, []byte("q")) {
			return thousandths(value)
		}
	}
	return 1000
}

// thousandths reads a qvalue: 0 or 1, and up to three decimals.
func thousandths(text []byte) int {
	whole, decimals, _ := bytes.Cut(text, []byte{'.'})
	if len(decimals) > 3 || string(whole) != "0" && string(whole) != "1" {
		return 1000
	}
	n := int(whole[0] - '0')
	for i := range 3 {
		n *= 10
		if i < len(decimals) {
			if decimals[i] < '0' || decimals[i] > '9' {
				return 1000
			}
			n += int(decimals[i] - '0')
		}
	}
	return min(n, 1000)
}
