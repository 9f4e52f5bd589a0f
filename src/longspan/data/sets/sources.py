"""Where the files of named sets come from: the checksum of each and, where it is known, the address of its authors.

A checksum is of the content, unpacked where the file is packed: it is the same whoever packed it. Files of repositories
are those of one commit. A set without an address is a part of one that was made by us, or is nowhere in one piece: it
is read from a folder that has it.
"""

from dataclasses import dataclass

RAW = "https://raw.githubusercontent.com"
EXAMPLES = f"{RAW}/pytorch/examples/77f55b912142e11fcfdf5b530231fb9c52f181e8/word_language_model/data/wikitext-2"
GENSIM = f"{RAW}/piskvorky/gensim/37f90ec121eb7cd401448a947e80953e0c53ccdc/gensim/test/test_data"
MULTI30K = f"{RAW}/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw"
XQUAD = f"{RAW}/google-deepmind/xquad/7d30520c717524000f0d9d2f9c10a069acd9d285"
WNUT = f"{RAW}/leondz/emerging_entities_17/e52a2d2a71ac1a051ca2d532eef28653c5c02603"
GLUE = "https://dl.fbaipublicfiles.com/glue/data"
MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"


@dataclass(frozen=True)
class DataSource:
    """Of one file."""

    sha256: str  # of the content, unpacked
    url: str | None = None
    member: str | None = None  # of an archive: the name of the file in it


# By the folder of a set: its licence, and whom it asks to cite.
TERMS: dict[str, str] = {
    "tinyshakespeare": "public-domain text; Karpathy 2015 (char-rnn)",
    "wikitext2": "CC BY-SA (Wikipedia text); Merity et al. 2016",
    "text8": "Wikipedia text (CC BY-SA); Mahoney 2006; the first 6.8M of its 100M characters",
    "enwiki_xml": "Wikipedia text (CC BY-SA), as gensim's tests have it",
    "longtext": "Project Gutenberg License, which is in the file",
    "multi30k": "derived from Flickr30k, for research and education only; Elliott et al. 2016, 2017",
    "tanaka_enja": "none stated; of the Tanaka Corpus (small_parallel_enja)",
    "glue": "each task has its own terms; Wang et al. 2018 and the authors of each",
    "squad": "CC BY-SA 4.0; Rajpurkar et al. 2016, Artetxe et al. 2020",
    "wnut17": "CC BY 4.0; Derczynski et al. 2017",
    "imdb": "none stated; asks to cite Maas et al. 2011",
    "cifar10": "none stated; asks to cite Krizhevsky 2009; a fifth of the images",
    "mnist": "none stated; LeCun et al. 1998",
    "listops": "made by the Apache-2.0 code of Long Range Arena; Nangia & Bowman 2018, Tay et al. 2021",
    "pathfinder": "made by MIT and Apache-2.0 code; Linsley et al. 2018, Tay et al. 2021",
    "generated": "made by longspan itself; no terms",
}

SOURCES: dict[str, DataSource] = {
    "tinyshakespeare/input.txt": DataSource(
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        f"{RAW}/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt",
    ),
    "wikitext2/wiki.train.tokens.gz": DataSource(
        "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
        f"{EXAMPLES}/train.txt",
    ),
    "wikitext2/wiki.valid.tokens.gz": DataSource(
        "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
        f"{EXAMPLES}/valid.txt",
    ),
    "wikitext2/wiki.test.tokens.gz": DataSource(
        "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
        f"{EXAMPLES}/test.txt",
    ),
    "text8/text8_first6.8M.gz": DataSource(
        "88fe6c55543eb636352d9f6482efa3c35433743fceb51f460f0337da4310d940",
    ),
    "enwiki_xml/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2": DataSource(
        "34c1c63050c87cc8477b9ae36b1cb0edf372612c92938b742e579a7109c20fa4",
        f"{GENSIM}/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2",
    ),
    "longtext/warandpeace.txt.gz": DataSource(
        "bf5b273d9246268f96663c43c00a1055ae2e42c2262be32f7e43b48dd123451a",
        f"{RAW}/timbmg/RNNLM/e26dff5d8f4b5d07ee459f192ee2131923d7584f/data/warandpeace.txt",
    ),
    "multi30k/train.en.gz": DataSource(
        "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
        f"{MULTI30K}/train.en.gz",
    ),
    "multi30k/train.de.gz": DataSource(
        "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
        f"{MULTI30K}/train.de.gz",
    ),
    "multi30k/train.fr.gz": DataSource(
        "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
        f"{MULTI30K}/train.fr.gz",
    ),
    "multi30k/val.en.gz": DataSource(
        "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
        f"{MULTI30K}/val.en.gz",
    ),
    "multi30k/val.de.gz": DataSource(
        "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
        f"{MULTI30K}/val.de.gz",
    ),
    "multi30k/val.fr.gz": DataSource(
        "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
        f"{MULTI30K}/val.fr.gz",
    ),
    "multi30k/test_2016_flickr.en.gz": DataSource(
        "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
        f"{MULTI30K}/test_2016_flickr.en.gz",
    ),
    "multi30k/test_2016_flickr.de.gz": DataSource(
        "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
        f"{MULTI30K}/test_2016_flickr.de.gz",
    ),
    "multi30k/test_2016_flickr.fr.gz": DataSource(
        "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
        f"{MULTI30K}/test_2016_flickr.fr.gz",
    ),
    "multi30k/test_2017_flickr.en.gz": DataSource(
        "ce1450ddc5ab0834502579d77a170849952e15a2938b34cc503bdc25ebb4fb98",
        f"{MULTI30K}/test_2017_flickr.en.gz",
    ),
    "multi30k/test_2017_flickr.de.gz": DataSource(
        "c3078bc3b36808bf9d20eb2347ed6137016179ef59ec0d2b9b8ecc3fb2880081",
        f"{MULTI30K}/test_2017_flickr.de.gz",
    ),
    "multi30k/test_2017_flickr.fr.gz": DataSource(
        "6f3764e31dac41e9455e612958bcfd4e877c5e15cd66df2c2b2be6d9bd83e5b6",
        f"{MULTI30K}/test_2017_flickr.fr.gz",
    ),
    "multi30k/test_2017_mscoco.en.gz": DataSource(
        "43051fdfa86fd5395182e718a94ca67b1b227b9f7c79596ff0f6b813216981d2",
        f"{MULTI30K}/test_2017_mscoco.en.gz",
    ),
    "multi30k/test_2017_mscoco.de.gz": DataSource(
        "58277df3c75f92f7145a11b910b553d1cf82c439249d4dc237c899609eafac22",
        f"{MULTI30K}/test_2017_mscoco.de.gz",
    ),
    "multi30k/test_2017_mscoco.fr.gz": DataSource(
        "39cde3f43f32b0a6bf29ce4917a46329ff32e53070c2fac87506695a740ae0a0",
        f"{MULTI30K}/test_2017_mscoco.fr.gz",
    ),
    "tanaka_enja/train.en.gz": DataSource(
        "148b05dcd28638fe20ee84f2b1127001c80982be352007dda241fb759adadc76",
    ),
    "tanaka_enja/train.ja.gz": DataSource(
        "fc81a1434349ec98a449d7ae9cd2530057f689637684ecfed3501ea6a8a07ecc",
    ),
    "tanaka_enja/dev.en.gz": DataSource(
        "04a2673449770657fd5e3b963cb856be3130923212b6db8ac7eaeef18f06c041",
    ),
    "tanaka_enja/dev.ja.gz": DataSource(
        "cd534f56b8639dc130f86a365e5ec0aa70042000bdd740a622fbbf8b6be4acca",
    ),
    "tanaka_enja/test.en.gz": DataSource(
        "45edb380749ec2b49cca7618fc5a7595fc9f791180672ba466b90c873a4aa8bf",
    ),
    "tanaka_enja/test.ja.gz": DataSource(
        "d37dc460a81b064e4106c8913eb11fa300da05cf3f58a7a5bbfec7e20947ddef",
    ),
    "glue/SST-2/train.tsv.gz": DataSource(
        "48eac26399f8456935f81dd9e3a745c1430adb6c62e233ccfe22db4a0d15d1d1",
        f"{GLUE}/SST-2.zip",
        "SST-2/train.tsv",
    ),
    "glue/SST-2/dev.tsv.gz": DataSource(
        "54a9c12c77e402fc14d6a66a506f24d999f596b0176eb777c972cccc2f9cc4b0",
        f"{GLUE}/SST-2.zip",
        "SST-2/dev.tsv",
    ),
    "glue/SST-2/test.tsv.gz": DataSource(
        "69a938605609b3e6663b4487918fe1565eb293734e6e520d0366d1d412fd2a13",
        f"{GLUE}/SST-2.zip",
        "SST-2/test.tsv",
    ),
    "glue/RTE/train.tsv.gz": DataSource(
        "41e3a9b063433392343fad9e962cf2f58b681c78d8f71592f4186f0837246c5c",
        f"{GLUE}/RTE.zip",
        "RTE/train.tsv",
    ),
    "glue/RTE/dev.tsv.gz": DataSource(
        "80230dfa1347282e7b532b06a1004a76a710087541189bf874223ddf0e3819fb",
        f"{GLUE}/RTE.zip",
        "RTE/dev.tsv",
    ),
    "glue/RTE/test.tsv.gz": DataSource(
        "6e33f09b5c2bfd5fd5fde217070f3dd49e484e33b9752b5864cf36fc421a213f",
        f"{GLUE}/RTE.zip",
        "RTE/test.tsv",
    ),
    "glue/CoLA/train.tsv.gz": DataSource(
        "cb368ebeb9f27d7ad03720d27ddc95687a311bdb100781a2fe59a5f5b1bc0624",
        f"{GLUE}/CoLA.zip",
        "CoLA/train.tsv",
    ),
    "glue/CoLA/dev.tsv.gz": DataSource(
        "8c013e21dc39957cac37378d87bebe225b694a0d5fe13eded66c2856628833fd",
        f"{GLUE}/CoLA.zip",
        "CoLA/dev.tsv",
    ),
    "glue/CoLA/test.tsv.gz": DataSource(
        "3b4df85f7a9a0633574b38d181e18090ac961a24b18fb6bcd74999ddea8ad0b8",
        f"{GLUE}/CoLA.zip",
        "CoLA/test.tsv",
    ),
    "glue/STS-B/train.tsv.gz": DataSource(
        "41c4d978b6162abdcada7e49a982211954cca5459c228db478af333124b257a2",
        f"{GLUE}/STS-B.zip",
        "STS-B/train.tsv",
    ),
    "glue/STS-B/dev.tsv.gz": DataSource(
        "fe7dc0632a5033562f3cadff991f6e8d9b9b6311861660e78c3c82eb7db67f59",
        f"{GLUE}/STS-B.zip",
        "STS-B/dev.tsv",
    ),
    "glue/STS-B/test.tsv.gz": DataSource(
        "16b4223d7d44a644fbc10f1b449472cfe81e1715fb07cf44023b0aa88ce856eb",
        f"{GLUE}/STS-B.zip",
        "STS-B/test.tsv",
    ),
    "glue/MRPC/train.tsv.gz": DataSource(
        "f178bcc72ab4c2c1c778b480912e0c8e1dba3ead150dc1d490d70682ab888c1e",
    ),
    "glue/MRPC/dev.tsv.gz": DataSource(
        "9e8f284788040f7c9ecde2e1b3c07237c756f926bd9ef8548ef5d34b56f69f17",
    ),
    "glue/MRPC/test.tsv.gz": DataSource(
        "aee460ceda833926b8ab2ad952d399f5cf8bc9335cff19afcac03dc449558622",
    ),
    "glue/MRPC/msr_paraphrase_train.txt.gz": DataSource(
        "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89",
    ),
    "glue/MRPC/msr_paraphrase_test.txt.gz": DataSource(
        "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784",
    ),
    "glue/QNLI/dev.tsv.gz": DataSource(
        "ac19409dcb04631eaaa094bdebdcf621086bc352503dfb6a1a648b614986f4fd",
        f"{GLUE}/QNLIv2.zip",
        "QNLI/dev.tsv",
    ),
    "squad/dev-v1.1.json.gz": DataSource(
        "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9",
        "https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v1.1.json",
    ),
    "squad/xquad.en.json.gz": DataSource(
        "e4c57d1c9143aaa1c5d265ba5987a65f4e69528d2a98f29d6e75019b10344f29",
        f"{XQUAD}/xquad.en.json",
    ),
    "squad/xquad.de.json.gz": DataSource(
        "990b5d746746ed65ed4702ea5f35f99ffa4e2f1c390c07d003642acd937916f9",
        f"{XQUAD}/xquad.de.json",
    ),
    "wnut17/wnut17train.conll.gz": DataSource(
        "731820e13f71af324c6b55a1575ec2ce59fbaa2a0806f8f0400b98d56cd6a7a5",
        f"{WNUT}/wnut17train.conll",
    ),
    "wnut17/emerging.dev.conll.gz": DataSource(
        "e053b752b8155113ca66e7db08af5f2f5f43ab993694e4774f1ec5bad42312d8",
        f"{WNUT}/emerging.dev.conll",
    ),
    "wnut17/emerging.test.annotated.gz": DataSource(
        "2aa79b764e56ec9264a1b30fdd9b70195bd00ff400b62edd8f399d5f13c178f0",
        f"{WNUT}/emerging.test.annotated",
    ),
    "imdb/train.tsv.gz": DataSource(
        "f071481a91d104632eb59d5934089211629353274e5a3da62f9a08616731a927",
    ),
    "imdb/test.tsv.gz": DataSource(
        "8eeb77fbfbc36172942fa7a4ff827a5a8f74d93c8b4e2b172a39a49a3f1fc3a6",
    ),
    "cifar10/train_10k.npz": DataSource(
        "67a23dab9a2790543babd7010d0bcb13a24f8e3b286d52d557b1f2ed714a2110",
    ),
    "cifar10/test_2k.npz": DataSource(
        "fab7aa0f509fe60011af4185ba68556498436e4365e070506861e6c55c75842c",
    ),
    "mnist/train-images-idx3-ubyte.gz": DataSource(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        f"{MNIST}/train-images-idx3-ubyte.gz",
    ),
    "mnist/train-labels-idx1-ubyte.gz": DataSource(
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        f"{MNIST}/train-labels-idx1-ubyte.gz",
    ),
    "mnist/t10k-images-idx3-ubyte.gz": DataSource(
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        f"{MNIST}/t10k-images-idx3-ubyte.gz",
    ),
    "mnist/t10k-labels-idx1-ubyte.gz": DataSource(
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        f"{MNIST}/t10k-labels-idx1-ubyte.gz",
    ),
    "listops/lra_basic_train.tsv.gz": DataSource(
        "a606dcd0f57858b5276fde3bad125276e4ce44098a7f2838b2d0bfe48ca282c9",
    ),
    "listops/lra_basic_val.tsv.gz": DataSource(
        "e450552fb352498225050f548a4b0ea7a4a45e2a91240c1ac514ea414f85dc2b",
    ),
    "listops/lra_basic_test.tsv.gz": DataSource(
        "1af19d7302b49ba5bbe6366eda7b6c4983cb14ca3f8c1dbf7b4b0409d4c1e43e",
    ),
    "pathfinder/pathfinder32_easy_cl6_10000.npz": DataSource(
        "61885aa343b40c39956b5c389592a7ad2831aacb119b112a12ae7259afbd021c",
    ),
    "pathfinder/pathfinder32_hard_cl14_3000.npz": DataSource(
        "402ee22814988b56c8f6dfc8da361125b33d72962e9677025ef4069cd76e12b1",
    ),
}

__all__ = ["SOURCES", "TERMS", "DataSource"]
