"""Overlap of two sets of texts: ROUGE and BLEU, as in Progressive Tree Drafting's Table 2.

The paper compares a method's sampled texts with autoregressive texts. Two texts of one distribution differ too, so the
number to compare with is the overlap of two plain texts with different seeds, and not 100.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ROUGE = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}
"""Column of the published table -> name in the package rouge-score."""


def overlap(texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return ROUGE-1, ROUGE-2, ROUGE-L and BLEU of texts, each against its reference, in percent.

    ROUGE is the F1 of each pair (package rouge-score), averaged over pairs: on lower-cased runs of a-z and 0-9, without
    stemming, ROUGE-L over the whole text. A text without such a run scores 0. BLEU is corpus BLEU (package sacrebleu:
    up to 4-grams, its 13a tokens, case kept): n-grams are pooled over all pairs. The paper names no package and does
    not say whether its BLEU is pooled or a mean over texts. Pooled is how BLEU is defined and what the packages print
    for a set of texts; a mean over texts needs a smoothing, which would have to be guessed as well.

    Args:
        texts: of a method.
        references: to compare with, in the same order.

    Returns:
        `rouge_1`, `rouge_2`, `rouge_l` and `bleu`, the columns of `published("ptd")` Table 2. ROUGE stays the same
        when texts and references change places; BLEU, which punishes texts shorter than their references, need not.

    Raises:
        ValueError: for no texts, or not as many references.
        ImportError: where rouge-score or sacrebleu is not installed.
    """
    if not texts or len(texts) != len(references):
        raise ValueError(
            f"There are {len(texts)} texts and {len(references)} references; give at least one pair, and as many of "
            "each."
        )
    try:
        import sacrebleu
        from rouge_score import rouge_scorer, tokenizers
    except ImportError as error:
        raise ImportError(
            f"The overlap of texts needs the packages rouge-score and sacrebleu, and '{error.name}' is missing; "
            "install them with pip install 'dynatree-lib[notebooks]'."
        ) from error
    scorer = rouge_scorer.RougeScorer(list(ROUGE.values()), tokenizer=tokenizers.DefaultTokenizer(use_stemmer=False))
    scores = [scorer.score(reference, text) for text, reference in zip(texts, references, strict=True)]
    rouge = {name: 100 * float(np.mean([score[key].fmeasure for score in scores])) for name, key in ROUGE.items()}
    return {**rouge, "bleu": float(sacrebleu.corpus_bleu(list(texts), [list(references)], force=True).score)}
