package load

// words of one language, to make sample data of. Adjectives agree with all nouns of
// their list.
type words struct {
	share      int // of a hundred
	after      bool
	joint      string // between noun and adjective
	adjectives []string
	nouns      []string
	sentences  []string // of descriptions; %s is the product's name
	units      []string
	given      []string
	family     []string
	familyLast bool
	firms      []string // %s is a family name
	streets    []string
	cities     []string
	phone      string // # is a digit
}

var languages = []words{
	{
		share: 52, joint: " ", familyLast: true,
		adjectives: []string{"Stainless", "Heavy-Duty", "Organic", "Classic", "Compact", "Insulated", "Galvanized", "Recycled", "Premium", "Waterproof",
			"Cordless", "Folding", "Smoked", "Roasted", "Dark", "Light", "Extra Fine", "Double-Walled", "Hand-Made", "Unsalted",
			"Reinforced", "Adjustable", "Magnetic", "Anti-Slip", "Fireproof", "Silent", "Refurbished", "Thermal", "Soft", "Natural"},
		nouns: []string{"Steel Bolt", "Hex Nut", "Washer", "Hinge", "Cable Tie", "Extension Lead", "Socket Wrench", "Paint Roller", "Work Glove", "Safety Helmet",
			"Coffee Beans", "Green Tea", "Olive Oil", "Sea Salt", "Almond Butter", "Maple Syrup", "Cheddar", "Rye Bread", "Granola", "Chutney",
			"Desk Lamp", "Office Chair", "Notebook", "Ballpoint Pen", "Envelope", "Printer Paper", "Whiteboard", "USB Cable", "Keyboard", "Monitor Arm",
			"Water Bottle", "Lunch Box", "Tote Bag", "Rain Jacket", "Wool Socks", "Running Shoe", "Yoga Mat", "Garden Hose", "Plant Pot", "Dog Leash"},
		sentences: []string{"%s, as used in our own workshop.", "Sold singly or by the case. Best before the end of next year.",
			"New recipe: \"less sugar, more taste\".", "Ships in 2-3 days; 100% recyclable packaging.", "Fits models A_1 to A_9\nand all earlier ones."},
		units: []string{"pcs", "box", "kg", "l", "m", "pair", "12 x 330 ml"},
		given: []string{"Amelia", "Oliver", "Grace", "Noah", "Isla", "Leo", "Chloë", "Jack", "Zoe", "Samuel", "Ruth", "Conor"},
		family: []string{"Baker", "O'Neill", "Smith", "Okafor", "Hughes", "MacDonald", "Taylor", "Whitfield", "Patel", "Brontë", "Nguyen-Clarke",
			"Fletcher"},
		firms:   []string{"%s & Sons", "%s Ltd", "%s Hardware", "The %s Trading Company", "%s Foods, Inc."},
		streets: []string{"High Street", "Mill Lane", "Station Road", "King's Parade"}, cities: []string{"Leeds", "Cork", "Boston", "Wellington"},
		phone: "(171) 555-####",
	},
	{
		share: 7, joint: " ", familyLast: true,
		adjectives: []string{"Großer", "Kleiner", "Süßer", "Grüner", "Weißer", "Geräucherter", "Verzinkter"},
		nouns:      []string{"Schlüssel", "Käse", "Honig", "Pinsel", "Dübel", "Kühlschrank", "Kräutertee", "Spaß-Ball", "Schuhlöffel"},
		sentences:  []string{"%s aus eigener Fertigung, geprüft nach DIN.", "Lieferung in 3 Tagen; Übergrößen auf Anfrage."},
		units:      []string{"Stück", "Karton", "kg"}, given: []string{"Jürgen", "Anna", "Käthe", "Björn", "Max"},
		family:  []string{"Müller", "Groß", "Weiß", "Schäfer", "von der Höh", "Öztürk"},
		firms:   []string{"%s GmbH", "Gebrüder %s OHG", "%s & Töchter"},
		streets: []string{"Obere Straße", "Königsallee"}, cities: []string{"Köln", "Zürich", "Graz"}, phone: "+49 30 #######",
	},
	{
		share: 7, joint: " ", after: true, familyLast: true,
		adjectives: []string{"fumé", "léger", "épais", "français", "à l'ancienne", "sucré", "glacé"},
		nouns:      []string{"Pâté", "Fromage", "Café", "Thé", "Crayon", "Gâteau", "Câble", "Sirop d'érable", "Bœuf"},
		sentences:  []string{"%s : qualité supérieure, élevé en fût.", "À conserver au frais après ouverture."},
		units:      []string{"pièce", "carton", "kg"}, given: []string{"Zoé", "Rémi", "François", "Noëlle", "Élodie"},
		family:  []string{"Lefèvre", "Dupont", "Béranger", "L'Hôpital", "Saint-Exupéry"},
		firms:   []string{"Maison %s", "%s et Cie", "Établissements %s"},
		streets: []string{"rue de l'Église", "quai aux Fleurs"}, cities: []string{"Nîmes", "Liège", "Québec"}, phone: "+33 1 ## ## ## ##",
	},
	{
		share: 6, joint: " ", after: true, familyLast: true,
		adjectives: []string{"pequeño", "añejo", "picante", "rápido", "eléctrico", "español"},
		nouns:      []string{"Jamón", "Queso", "Piñón", "Cinturón", "Azafrán", "Jabón", "Café", "Pimentón"},
		sentences:  []string{"%s de la región, ¡pruébelo!", "Envío en 24 horas."},
		units:      []string{"unidad", "caja", "kg"}, given: []string{"José", "Begoña", "Íñigo", "Lucía", "Ana"},
		family:  []string{"Muñoz", "Trujillo", "Ibáñez", "Pérez", "Núñez de Balboa"},
		firms:   []string{"%s Hermanos, S.A.", "Ferretería %s", "Comercial %s"},
		streets: []string{"Avda. de la Constitución", "Calle Mayor"}, cities: []string{"México D.F.", "Logroño", "Bogotá"}, phone: "(5) 555-####",
	},
	{
		share: 5, joint: " ", familyLast: true,
		adjectives: []string{"Μικρός", "Μεγάλος", "Ελληνικός", "Άσπρος", "Γλυκός"},
		nouns:      []string{"Καφές", "Πίνακας", "Χυμός", "Σάκος", "Φακός", "Οίνος"},
		sentences:  []string{"%s, άριστης ποιότητας.", "Παράδοση εντός τριών ημερών."},
		units:      []string{"τεμάχιο", "κιβώτιο"}, given: []string{"Γιώργος", "Ελένη", "Οδυσσέας", "Άννα"},
		family:  []string{"Παπαδόπουλος", "Ιωάννου", "Καραγιάννης", "Ξένος"},
		firms:   []string{"%s Α.Ε.", "Αφοί %s", "%s και Υιοί"},
		streets: []string{"Οδός Ερμού", "Λεωφόρος Συγγρού"}, cities: []string{"Αθήνα", "Θεσσαλονίκη"}, phone: "+30 21# #######",
	},
	{
		share: 7, joint: " ", familyLast: true,
		adjectives: []string{"Чёрный", "Большой", "Копчёный", "Стальной", "Новый", "Тёмный"},
		nouns:      []string{"чай", "хлеб", "болт", "ключ", "сыр", "мёд", "ёж-ёршик", "шоколад"},
		sentences:  []string{"%s высшего сорта.", "Хранить в сухом месте; срок годности 12 месяцев."},
		units:      []string{"шт", "кг", "уп"}, given: []string{"Иван", "Ольга", "Фёдор", "Наталья"},
		family:  []string{"Иваненко", "Шевченко", "Коваленко", "Щедрый"},
		firms:   []string{"ООО «%s»", "Торговый дом «%s»", "%s и партнёры"},
		streets: []string{"ул. Лесная", "пр. Мира"}, cities: []string{"Київ", "Алматы"}, phone: "+7 495 ###-##-##",
	},
	{
		share: 5, joint: "",
		adjectives: []string{"新鮮な", "小さな", "特製", "国産", "有機"},
		nouns:      []string{"緑茶", "ボルト", "ノート", "味噌", "りんご", "ガラス瓶", "鉛筆"},
		sentences:  []string{"%sは、当店の人気商品です。", "送料無料。最短で翌日にお届けします。"},
		units:      []string{"個", "箱", "本"}, given: []string{"太郎", "花子", "さくら", "健"},
		family:  []string{"田中", "鈴木", "高橋", "渡邉"},
		firms:   []string{"株式会社%s", "%s商店", "%s製作所"},
		streets: []string{"中央1丁目", "本町2丁目"}, cities: []string{"東京都", "京都市"}, phone: "03-####-####",
	},
	{
		share: 4, joint: "",
		adjectives: []string{"新鲜", "优质", "大号", "不锈钢", "黑色"},
		nouns:      []string{"螺丝", "茶叶", "水杯", "雨伞", "手套", "酱油"},
		sentences:  []string{"%s,品质保证。", "三日内发货,包邮。"},
		units:      []string{"件", "盒"}, given: []string{"伟", "芳", "秀英", "𠮷"},
		family:  []string{"王", "李", "张", "欧阳"},
		firms:   []string{"%s氏贸易有限公司", "%s记食品厂"},
		streets: []string{"人民路", "南京东路"}, cities: []string{"上海", "廣州"}, phone: "+86 10 ########",
	},
	{
		share: 2, joint: " ",
		adjectives: []string{"매운", "작은", "신선한"}, nouns: []string{"김치", "볼트", "공책", "인삼차"},
		sentences: []string{"%s, 인기 상품입니다."}, units: []string{"개", "상자"},
		given: []string{"민준", "서연"}, family: []string{"김", "이", "박"}, firms: []string{"%s상사", "주식회사 %s"},
		streets: []string{"세종대로"}, cities: []string{"서울", "부산"}, phone: "+82 2-###-####",
	},
	{
		share: 2, joint: " ", after: true, familyLast: true,
		adjectives: []string{"أخضر", "كبير", "طازج"}, nouns: []string{"شاي", "مفتاح", "خبز", "دفتر"},
		sentences: []string{"%s من أجود الأنواع."}, units: []string{"قطعة", "علبة"},
		given: []string{"أحمد", "ليلى"}, family: []string{"الهاشمي", "منصور"}, firms: []string{"شركة %s", "%s وأولاده"},
		streets: []string{"شارع النيل"}, cities: []string{"القاهرة", "عمّان"}, phone: "+20 2 ########",
	},
	{
		share: 1, joint: " ", after: true, familyLast: true,
		adjectives: []string{"גדול", "ירוק"}, nouns: []string{"תה", "בורג", "לחם"},
		sentences: []string{"%s באיכות גבוהה."}, units: []string{"יח׳"},
		given: []string{"נועה", "דוד"}, family: []string{"כהן", "לוי"}, firms: []string{"%s בע״מ"},
		streets: []string{"רחוב הרצל"}, cities: []string{"חיפה"}, phone: "+972 4-#######",
	},
	{
		share: 2, joint: " ", familyLast: true,
		adjectives: []string{"İnce", "Kırmızı", "Taze", "Büyük"}, nouns: []string{"Çay", "Fındık", "Işık", "İplik", "Vida"},
		sentences: []string{"%s, günlük üretim."}, units: []string{"adet", "koli"},
		given: []string{"İbrahim", "Ayşe"}, family: []string{"Yılmaz", "Çelik"}, firms: []string{"%s Ticaret A.Ş."},
		streets: []string{"İstiklâl Caddesi"}, cities: []string{"İstanbul", "Diyarbakır"}, phone: "+90 212 ### ####",
	},
}

// What products of any language may end with.
var variants = []string{"", "", "", "", " 500 ml", " 1 kg", " 2 kg", " M6", " M8 × 40", " A4", " XL", " 12 V", " 50%", " (2024)", " №5", " 2-pack", " 10-pack", " 1½\""}

var emoji = []string{"🌶️", "🍏", "⚙️", "👩🏽‍🌾", "🇬🇷", "☕", "📦"}
