"""What the words of a report mean, in a sentence each: shown where one hovers or taps."""

WORDS = {
    "accuracy": "The share of test samples whose class is right.",
    "commonest class": "What always answering the commonest class would get right: accuracy is worth what is above it.",
    "balanced accuracy": "The mean over classes of the share that is found: each class counts alike.",
    "AUC": "How often a sample of a class gets a higher probability of it than one of another class; 0.5 is guessing.",
    "threshold": "The probability from which on the class is answered.",
    "calibration error": "How far confidence is from accuracy on average, less what noise explains. A point is 0.01.",
    "log-loss": "Mean of -log of the true class's probability: it pays for errors and for false confidence.",
    "certified accuracy": "The share of test samples that are right and provably stay so up to epsilon.",
    "attacked accuracy": "The share of attacked samples that PGD, a real attack, could not make wrong.",
    "Lipschitz constant": "By how much the logits change at most when the input changes by 1. Certificates follow.",
    "proven bound": "The constant that certificates use, from the weights, by methods that never under-estimate.",
    "ECE of a calibrated model": "What a perfectly calibrated model would show on as many samples: noise alone.",
    "ECE limit": "What a model with a temperature from so many calibration samples stays below in 95 % of cases.",
    "ECE": "Expected calibration error: mean |confidence - accuracy| over 15 bins of confidence, noise included.",
    "ESCE": "Mean confidence minus accuracy: above 0 is over-confident.",
    "maximum calibration error": "The largest |confidence - accuracy| of any bin; noisy where a bin holds few samples.",
    "adaptive ECE": "The ECE over bins that hold equally many samples.",
    "classwise ECE": "The ECE of each class's probability, averaged over classes.",
    "smooth ECE": "The ECE with a smooth kernel instead of bins.",
    "NLL": "Negative log-likelihood, the log-loss: mean of -log of the probability that the true class got.",
    "Brier score": "Mean squared distance of the probabilities from the truth, 0 to 2. Lower is better.",
    "AURC": "Area under the risk-coverage curve: mean share of errors among the surest answers. Lower is better.",
    "errors of surest 80 %": "The share of wrong answers among the most confident 80 %.",
    "share from": "At least this share of samples keeps such a confidence, whatever the changes.",
    "accuracy from": "At least this share of the answers with such a confidence is right, whatever the changes.",
    "T on the test set": "The temperature that would calibrate it: 1 is calibrated, above 1 is over-confident.",
    "Phase I": "Training with feedback: L moves until a calibration set asks for no correction.",
    "Phase II": "Training on all data, the calibration samples included, with L frozen.",
    "training time": "Seconds spent in epochs, on the machine that trained it.",
}  # fmt: skip


def meaning(name: str) -> str:
    """What a line of a table means: that of the longest word that it begins with; nothing where none is known."""
    known = [word for word in WORDS if name.startswith(word)]
    return WORDS[max(known, key=len)] if known else ""
